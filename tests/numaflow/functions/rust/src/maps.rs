//! Maps and the transformer, which follow the orders in payloads.

use chrono::DateTime;
use numaflow::{batchmap, map, mapstream, sourcetransform};
use tokio::sync::mpsc::{Receiver, Sender};

use crate::behaviour::{outputs, parse, sight};
use crate::plain;

pub struct Maps;

/// Adds what "meta GROUP KEY VALUE" says to the metadata that came.
macro_rules! with_metadata {
    ($order:expr, $metadata:expr) => {{
        let mut metadata = $metadata;
        if $order.verb == "meta" {
            let words: Vec<&str> = $order.rest.split(' ').collect();
            metadata.add_kv(words[0].into(), words[1].into(), words[2].into());
        }
        metadata
    }};
}

#[tonic::async_trait]
impl map::Mapper for Maps {
    async fn map(&self, input: map::MapRequest) -> Vec<map::Message> {
        let order = parse(&input.value);
        let mut seen = sight(
            &input.keys,
            &input.headers,
            input.eventtime,
            input.watermark,
        );
        seen["user"] = plain!(input.user_metadata);
        seen["system"] = plain!(input.system_metadata);
        let metadata = with_metadata!(order, input.user_metadata);
        outputs(&order, input.value, input.keys, seen)
            .await
            .into_iter()
            .map(|output| map::Message {
                keys: Some(output.keys),
                value: output.value,
                tags: Some(output.tags),
                user_metadata: Some(metadata.clone()),
                nack_options: output.nack,
            })
            .collect()
    }
}

#[tonic::async_trait]
impl batchmap::BatchMapper for Maps {
    async fn batchmap(&self, mut input: Receiver<batchmap::Datum>) -> Vec<batchmap::BatchResponse> {
        let mut responses = vec![];
        while let Some(datum) = input.recv().await {
            let order = parse(&datum.value);
            let mut seen = sight(
                &datum.keys,
                &datum.headers,
                datum.event_time,
                datum.watermark,
            );
            seen["id"] = datum.id.clone().into();
            let wrong = if order.verb == "wrong-id" {
                "wrong-"
            } else {
                ""
            };
            let mut response = batchmap::BatchResponse::from_id(format!("{wrong}{}", datum.id));
            for output in outputs(&order, datum.value, datum.keys, seen).await {
                response.append(batchmap::Message {
                    keys: Some(output.keys),
                    value: output.value,
                    tags: Some(output.tags),
                    nack_options: output.nack,
                });
            }
            responses.push(response);
        }
        responses
    }
}

#[tonic::async_trait]
impl mapstream::MapStreamer for Maps {
    async fn map_stream(
        &self,
        input: mapstream::MapStreamRequest,
        messages: Sender<mapstream::Message>,
    ) {
        let order = parse(&input.value);
        let seen = sight(
            &input.keys,
            &input.headers,
            input.eventtime,
            input.watermark,
        );
        for output in outputs(&order, input.value, input.keys, seen).await {
            let message = mapstream::Message {
                keys: Some(output.keys),
                value: output.value,
                tags: Some(output.tags),
                nack_options: output.nack,
            };
            if messages.send(message).await.is_err() {
                return;
            }
        }
    }
}

#[tonic::async_trait]
impl sourcetransform::SourceTransformer for Maps {
    async fn transform(
        &self,
        input: sourcetransform::SourceTransformRequest,
    ) -> Vec<sourcetransform::Message> {
        let order = parse(&input.value);
        let mut seen = sight(
            &input.keys,
            &input.headers,
            input.eventtime,
            input.watermark,
        );
        seen["user"] = plain!(input.user_metadata);
        seen["system"] = plain!(input.system_metadata);
        let event_time = match order.verb.as_str() {
            "time" => DateTime::from_timestamp_millis(order.rest.parse().expect("a number"))
                .expect("a moment"),
            _ => input.eventtime,
        };
        let metadata = with_metadata!(order, input.user_metadata);
        outputs(&order, input.value, input.keys, seen)
            .await
            .into_iter()
            .map(|output| sourcetransform::Message {
                keys: Some(output.keys),
                value: output.value,
                event_time,
                tags: Some(output.tags),
                user_metadata: Some(metadata.clone()),
                nack_options: output.nack,
            })
            .collect()
    }
}
