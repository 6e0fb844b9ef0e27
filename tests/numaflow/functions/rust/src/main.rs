//! Serves one of Numaflow's functions, chosen by the first argument, on the public Rust SDK.
//!
//! What it does with a message is written in the message: see behaviour.rs and ../README.md.

mod behaviour;
mod maps;
mod sink;
mod source;

use std::path::{Path, PathBuf};

use numaflow::shared::ServerExtras;

type Ended = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// Starts a server on the socket and the server-info file of its kind.
macro_rules! serve {
    ($server:expr, $folder:expr, $socket:expr, $info:expr) => {
        $server
            .with_socket_file(at($folder, $socket))
            .with_server_info_file(at($folder, $info))
            .start()
            .await
    };
}

fn at(folder: &Path, name: impl AsRef<Path>) -> PathBuf {
    folder.join(name)
}

#[tokio::main]
async fn main() -> Ended {
    let arguments: Vec<String> = std::env::args().collect();
    let kind = arguments[1].as_str();
    let folder = arguments.get(2).map_or("/var/run/numaflow", String::as_str);
    let folder = Path::new(folder);
    match kind {
        "map" => serve!(
            numaflow::map::Server::new(maps::Maps),
            folder,
            "map.sock",
            "mapper-server-info"
        ),
        "batch-map" => serve!(
            numaflow::batchmap::Server::new(maps::Maps),
            folder,
            "batchmap.sock",
            "mapper-server-info"
        ),
        "stream-map" => serve!(
            numaflow::mapstream::Server::new(maps::Maps),
            folder,
            "mapstream.sock",
            "mapper-server-info"
        ),
        "transformer" => serve!(
            numaflow::sourcetransform::Server::new(maps::Maps),
            folder,
            "sourcetransform.sock",
            "sourcetransformer-server-info"
        ),
        "sink" | "fallback-sink" | "on-success-sink" => {
            let prefix = match kind {
                "fallback-sink" => "fb-",
                "on-success-sink" => "ons-",
                _ => "",
            };
            let answers = sink::Answers { kind: kind.into() };
            serve!(
                numaflow::sink::Server::new(answers),
                folder,
                format!("{prefix}sink.sock"),
                format!("{prefix}sinker-server-info")
            )
        }
        "source" => serve!(
            numaflow::source::Server::new(source::Lines::new()),
            folder,
            "source.sock",
            "sourcer-server-info"
        ),
        _ => Err(format!("no function of kind {kind:?}").into()),
    }
}
