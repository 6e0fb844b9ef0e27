//! A source that gives the lines of a file.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Mutex;

use chrono::DateTime;
use numaflow::source::{Message, NackOffset, Offset, SourceReadRequest, Sourcer, UserMetadata};
use tokio::sync::mpsc::Sender;

use crate::behaviour::{nack_text, record, recorded};

const FIRST_EVENT_TIME: i64 = 1_700_000_000;

/// Gives again what was nacked, or not acknowledged when it ended.
pub struct Lines {
    payloads: Vec<String>,
    state: Mutex<State>,
}

struct State {
    waiting: VecDeque<usize>,
    acked: BTreeSet<usize>,
}

impl Lines {
    pub fn new() -> Self {
        let payloads = recorded("FUNCTION_PAYLOADS");
        let acked: BTreeSet<usize> = recorded("FUNCTION_RECORD")
            .iter()
            .filter_map(|line| line.strip_prefix("ack ")?.parse().ok())
            .collect();
        let waiting = (0..payloads.len()).filter(|index| !acked.contains(index));
        let state = State {
            waiting: waiting.collect(),
            acked,
        };
        Lines {
            payloads,
            state: Mutex::new(state),
        }
    }

    fn take(&self, most: usize) -> Vec<usize> {
        let mut state = self.state.lock().expect("nobody panics with it");
        let most = most.min(state.waiting.len());
        state.waiting.drain(..most).collect()
    }

    fn message(&self, index: usize) -> Message {
        let mut metadata = UserMetadata::new();
        metadata.add_kv("source".into(), "index".into(), index.to_string().into());
        let seconds = FIRST_EVENT_TIME + index as i64;
        Message {
            value: self.payloads[index].clone().into(),
            offset: Offset {
                offset: index.to_string().into(),
                partition_id: 0,
            },
            event_time: DateTime::from_timestamp(seconds, 0).expect("a moment"),
            keys: vec![format!("key-{index}")],
            headers: HashMap::from([("index".into(), index.to_string())]),
            user_metadata: Some(metadata),
        }
    }
}

fn index(offset: &Offset) -> usize {
    let text = String::from_utf8_lossy(&offset.offset);
    text.parse().expect("an offset of ours")
}

#[tonic::async_trait]
impl Sourcer for Lines {
    async fn read(&self, request: SourceReadRequest, messages: Sender<Message>) {
        let taken = self.take(request.count);
        if taken.is_empty() {
            tokio::time::sleep(request.timeout).await;
        }
        for index in taken {
            if messages.send(self.message(index)).await.is_err() {
                return;
            }
        }
    }

    async fn ack(&self, offsets: Vec<Offset>) {
        let mut state = self.state.lock().expect("nobody panics with it");
        let indexes: Vec<usize> = offsets.iter().map(index).collect();
        let lines: Vec<String> = indexes.iter().map(|index| format!("ack {index}")).collect();
        state.acked.extend(indexes);
        record(&lines);
    }

    async fn nack(&self, offsets: Vec<NackOffset>) {
        let mut state = self.state.lock().expect("nobody panics with it");
        let mut lines = vec![];
        for nacked in &offsets {
            let index = index(&nacked.offset);
            lines.push(format!(
                "nack {index}{}",
                nack_text(nacked.options.as_ref())
            ));
            state.waiting.push_front(index);
        }
        record(&lines);
    }

    async fn pending(&self) -> Option<usize> {
        let state = self.state.lock().expect("nobody panics with it");
        Some(self.payloads.len() - state.acked.len())
    }
}
