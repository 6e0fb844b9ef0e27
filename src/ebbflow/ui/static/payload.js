// Formats a message's value for people: text, JSON and hex. Pure functions.

/** The bytes of a value as the server sends it: {text} or {base64}. */
export function bytes(value) {
  if (value?.base64 != null) {
    return Uint8Array.from(atob(value.base64), (letter) => letter.charCodeAt(0));
  }
  return new TextEncoder().encode(value?.text ?? "");
}

/** The value as indented JSON, or null if it is not JSON. */
export function asJson(value) {
  return value?.text != null && isJson(value.text) ? indent(value.text) : null;
}

export function isJson(text) {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

// Strings, brackets, commas and colons, space, and the rest. Numbers stay as they are written;
// JSON.stringify would change large ones.
const TOKENS = /"(?:[^"\\]|\\.)*"|[{}[\],:]|\s+|[^\s{}[\],:"]+/g;

/** Valid JSON without spaces and line breaks. */
export function compact(text) {
  return text
    .match(TOKENS)
    .filter((token) => token.trim())
    .join("");
}

function indent(text) {
  const tokens = text.match(TOKENS).filter((token) => token.trim());
  let depth = 0;
  const line = () => `\n${"  ".repeat(depth)}`;
  return tokens
    .map((token, at) => {
      if ("{[".includes(token)) {
        const isEmpty = "}]".includes(tokens[at + 1]);
        depth++;
        return isEmpty ? token : token + line();
      }
      if ("}]".includes(token)) {
        depth--;
        return "{[".includes(tokens[at - 1]) ? token : line() + token;
      }
      if (token === ",") return token + line();
      return token === ":" ? ": " : token;
    })
    .join("");
}

/** The bytes as text; invalid ones become replacement characters. */
export function asText(value) {
  return value?.text ?? new TextDecoder().decode(bytes(value));
}

/** Lines of an offset, sixteen bytes and their characters, like hexdump. */
export function asHex(value, limit = 8192) {
  const data = bytes(value);
  const lines = [];
  for (let start = 0; start < Math.min(data.length, limit); start += 16) {
    const row = [...data.slice(start, start + 16)];
    const pairs = row.map((byte) => byte.toString(16).padStart(2, "0"));
    const left = pairs.slice(0, 8).join(" ").padEnd(23);
    const right = pairs.slice(8).join(" ").padEnd(23);
    const letters = row.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "."));
    lines.push(`${start.toString(16).padStart(6, "0")}  ${left}  ${right}  ${letters.join("")}`);
  }
  if (data.length > limit) lines.push(`… ${data.length - limit} more bytes`);
  return lines.join("\n");
}

/** Headers as lines "name: value", and back; throws an Error with the wrong line. */
export function writeHeaders(headers) {
  return Object.entries(headers ?? {})
    .map(([name, value]) => `${name}: ${value}`)
    .join("\n");
}

export function readHeaders(text) {
  const lines = text.split("\n").filter((line) => line.trim());
  return Object.fromEntries(
    lines.map((line) => {
      const at = line.indexOf(":");
      if (at < 1) throw new Error(`A header must be "name: value", and this is not: ${line}`);
      return [line.slice(0, at).trim(), line.slice(at + 1).trim()];
    }),
  );
}

export function readKeys(text) {
  return text.split("\n").filter((line) => line !== "");
}
