//! The payload of a message read as an order: what a function is to do with it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::OpenOptions;
use std::io::Write;
use std::sync::Mutex;
use std::time::Duration;

use chrono::{DateTime, Utc};
use numaflow::shared::NackOptions;
use serde_json::{Value, json};

pub const DROP_TAG: &str = "U+005C__DROP__";
pub const FAIL_TAG: &str = "U+005C__FAIL__";
pub const NACK_TAG: &str = "U+005C__NACK__";

static SEEN: Mutex<Option<HashSet<String>>> = Mutex::new(None);

/// A verb and its arguments; a payload without a known verb is passed on.
pub struct Order {
    pub verb: String,
    pub rest: String,
}

pub fn parse(payload: &[u8]) -> Order {
    let whole = addressed(&String::from_utf8_lossy(payload));
    let text = match whole.strip_prefix("once ") {
        Some(text) if !first_time(text) => return order("pass", ""),
        Some(text) => text,
        None => whole.as_str(),
    };
    let (verb, rest) = text.split_once(' ').unwrap_or((text, ""));
    order(verb, rest)
}

/// The part of "@map drop;@sink fail no" that is for this kind of function.
fn addressed(payload: &str) -> String {
    if !payload.starts_with('@') {
        return payload.into();
    }
    let mine = format!("@{} ", std::env::args().nth(1).unwrap_or_default());
    let mut parts = payload.split(';');
    let part = parts.find_map(|part| part.strip_prefix(&mine));
    part.unwrap_or("pass").into()
}

fn order(verb: &str, rest: &str) -> Order {
    Order {
        verb: verb.into(),
        rest: rest.into(),
    }
}

fn first_time(text: &str) -> bool {
    let mut seen = SEEN.lock().expect("nobody panics with it");
    seen.get_or_insert_default().insert(text.into())
}

/// Panics, sleeps, ends the process or never returns, if the order says so.
pub async fn trouble(order: &Order) {
    match order.verb.as_str() {
        "panic" => panic!("{}", order.rest),
        "exit" => std::process::exit(3),
        "hang" => std::future::pending().await,
        "sleep" => {
            let millis = order.rest.parse().expect("a number");
            tokio::time::sleep(Duration::from_millis(millis)).await;
        }
        _ => {}
    }
}

/// Reads "delay=5 max=2 reason=busy"; what is left out stays unset.
pub fn nack_options(rest: &str) -> Option<NackOptions> {
    if rest.is_empty() {
        return None;
    }
    let mut options = NackOptions::default();
    for field in rest.split_whitespace() {
        match field.split_once('=') {
            Some(("delay", value)) => options.delay = value.parse().ok(),
            Some(("max", value)) => options.max_deliveries = value.parse().ok(),
            Some(("reason", value)) => options.reason = Some(value.into()),
            _ => {}
        }
    }
    Some(options)
}

/// Writes options as `nack_options` reads them.
pub fn nack_text(options: Option<&NackOptions>) -> String {
    let mut text = String::new();
    let Some(options) = options else {
        return text;
    };
    if let Some(delay) = options.delay {
        text += &format!(" delay={delay}");
    }
    if let Some(most) = options.max_deliveries {
        text += &format!(" max={most}");
    }
    if let Some(reason) = &options.reason {
        text += &format!(" reason={reason}");
    }
    text
}

/// A message that any kind of map gives.
pub struct Output {
    pub value: Vec<u8>,
    pub keys: Vec<String>,
    pub tags: Vec<String>,
    pub nack: Option<NackOptions>,
}

impl Output {
    fn tagged(value: &str, tag: &str) -> Self {
        Output {
            value: value.into(),
            keys: vec![],
            tags: vec![tag.into()],
            nack: None,
        }
    }
}

pub async fn outputs(
    order: &Order,
    payload: Vec<u8>,
    keys: Vec<String>,
    seen: Value,
) -> Vec<Output> {
    trouble(order).await;
    let mut same = Output {
        value: payload,
        keys,
        tags: vec![],
        nack: None,
    };
    match order.verb.as_str() {
        "none" => return vec![],
        "drop" => return vec![Output::tagged("", DROP_TAG)],
        "fail" => return vec![Output::tagged(&order.rest, FAIL_TAG)],
        "nack" => {
            let mut output = Output::tagged("", NACK_TAG);
            output.nack = nack_options(&order.rest);
            return vec![output];
        }
        "flat" => {
            let part = |part: &str| Output {
                value: part.into(),
                keys: same.keys.clone(),
                tags: vec![],
                nack: None,
            };
            return order.rest.split(',').map(part).collect();
        }
        "tags" => same.tags = words(&order.rest),
        "keys" => same.keys = words(&order.rest),
        "describe" => same.value = seen.to_string().into(),
        _ => {}
    }
    vec![same]
}

fn words(text: &str) -> Vec<String> {
    text.split(',').map(Into::into).collect()
}

/// What the function was told of a message, as JSON with sorted names.
pub fn sight(
    keys: &[String],
    headers: &HashMap<String, String>,
    event_time: DateTime<Utc>,
    watermark: DateTime<Utc>,
) -> Value {
    let headers: BTreeMap<_, _> = headers.iter().collect();
    json!({
        "event_time": event_time.timestamp_millis(),
        "headers": headers,
        "keys": keys,
        "watermark": watermark.timestamp_millis(),
    })
}

/// Metadata of any of the SDK's modules, which have a type each, as JSON.
#[macro_export]
macro_rules! plain {
    ($metadata:expr) => {{
        let mut all = serde_json::Map::new();
        for group in $metadata.groups() {
            let mut pairs = serde_json::Map::new();
            for key in $metadata.keys(&group) {
                let value = $metadata.value(&group, &key);
                pairs.insert(key, String::from_utf8_lossy(&value).into());
            }
            all.insert(group, pairs.into());
        }
        serde_json::Value::from(all)
    }};
}

/// Appends lines to the file that tests read; without one nothing happens.
pub fn record(lines: &[String]) {
    let Ok(path) = std::env::var("FUNCTION_RECORD") else {
        return;
    };
    if lines.is_empty() {
        return;
    }
    let mut file = OpenOptions::new()
        .append(true)
        .create(true)
        .open(path)
        .expect("the file of the test");
    file.write_all((lines.join("\n") + "\n").as_bytes())
        .expect("room for a line");
}

/// The lines of the file that the variable names; none without it.
pub fn recorded(variable: &str) -> Vec<String> {
    std::env::var(variable)
        .ok()
        .and_then(|path| std::fs::read_to_string(path).ok())
        .map(|text| text.lines().map(Into::into).collect())
        .unwrap_or_default()
}
