//! The sinks, which answer for each message as its payload says and record the ones they took.

use numaflow::sink::{Message, Response, SinkRequest, Sinker};
use tokio::sync::mpsc::Receiver;

use crate::behaviour::{Order, nack_options, parse, record, sight, trouble};
use crate::plain;

pub struct Answers {
    pub kind: String,
}

#[tonic::async_trait]
impl Sinker for Answers {
    async fn sink(&self, mut input: Receiver<SinkRequest>) -> Vec<Response> {
        let (mut responses, mut lines) = (vec![], vec![]);
        while let Some(datum) = input.recv().await {
            let order = parse(&datum.value);
            let payload = String::from_utf8_lossy(&datum.value).into_owned();
            lines.push(format!("{} {payload}", self.kind));
            if order.verb == "describe" {
                let mut seen = sight(
                    &datum.keys,
                    &datum.headers,
                    datum.event_time,
                    datum.watermark,
                );
                seen["id"] = datum.id.clone().into();
                seen["user"] = plain!(datum.user_metadata);
                seen["system"] = plain!(datum.system_metadata);
                lines.push(format!("saw {seen}"));
            }
            trouble(&order).await;
            responses.push(self.response(datum.id, &order));
        }
        record(&lines);
        responses
    }
}

impl Answers {
    /// The sinks beside the primary one answer OK.
    fn response(&self, id: String, order: &Order) -> Response {
        let primary = self.kind == "sink";
        match order.verb.as_str() {
            "fail" if primary => Response::failure(id, order.rest.clone()),
            "fallback" if primary => Response::fallback(id),
            "success" if primary => {
                Response::on_success(id, Some(Message::new(order.rest.clone().into())))
            }
            "serve" if primary => Response::serve(id, order.rest.clone().into()),
            "nack" if primary => Response::nack(id, nack_options(&order.rest)),
            "wrong-id" => Response::ok(format!("wrong-{id}")),
            _ => Response::ok(id),
        }
    }
}
