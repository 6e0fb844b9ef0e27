// Preact's elements and hooks for all views, written as HTML templates.

import { Fragment, h, render } from "./vendor/preact.js";
import htm from "./vendor/htm.js";

export { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/hooks.js";
export const html = htm.bind(h);
export { Fragment, render };
