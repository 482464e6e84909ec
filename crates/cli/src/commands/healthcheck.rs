//! `seriatim healthcheck`.

use std::path::PathBuf;
use std::time::Duration;

use reqwest::redirect::Policy;
use reqwest::{Client, Url};
use seriatim_console::exit::{Exit, Failure};
use seriatim_console::global::Global;
use seriatim_console::secrets::without_secrets;
use seriatim_console::shown;
use seriatim_console::units::time;

/// The most bytes that are read of an answer. The answer has the reason if the probe fails.
const BODY_BYTES_MAX: usize = 16 * 1024;
/// The most characters that are printed of the reason in an answer.
const REASON_CHARS_MAX: usize = 300;

/// Send one request to a probe URL; the exit code is 0 if the answer is 2xx, and otherwise 1. This
/// is for container images without a shell
///
/// For a worker with --http 127.0.0.1:9187: seriatim healthcheck http://127.0.0.1:9187/healthz
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The URL: http://HOST:PORT/PATH, https://…, or unix:SOCKET:/PATH
    #[arg(value_name = "URL", value_parser = target)]
    target: Target,
    /// The longest wait for the answer: 100ms to 1m
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = patience)]
    timeout: Duration,
}

fn patience(text: &str) -> Result<Duration, String> {
    let patience = time(text)?;
    let range = Duration::from_millis(100)..=Duration::from_secs(60);
    if range.contains(&patience) {
        Ok(patience)
    } else {
        Err("it must be 100ms to 1m".to_owned())
    }
}

/// The target of the request: a URL, and for `unix:` also the path of the socket.
#[derive(Debug, Clone)]
struct Target {
    /// The URL as it was given, without a password.
    shown: String,
    url: Url,
    socket: Option<PathBuf>,
}

fn target(text: &str) -> Result<Target, String> {
    let (url, socket) = match text.strip_prefix("unix:").map(|rest| rest.rsplit_once(':')) {
        None => (text.to_owned(), None),
        Some(Some((socket, path))) if !socket.is_empty() && path.starts_with('/') => {
            (format!("http://localhost{path}"), Some(socket.into()))
        }
        Some(_) => return Err("write unix:SOCKET:/PATH".to_owned()),
    };
    let url: Url = url
        .parse()
        .map_err(|error| format!("{error}; write http://HOST:PORT/PATH"))?;
    if ["http", "https"].contains(&url.scheme()) {
        Ok(Target {
            shown: without_secrets(text),
            url,
            socket,
        })
    } else {
        Err("write http://HOST:PORT/PATH".to_owned())
    }
}

pub(crate) async fn run(args: Args, _: &Global) -> anyhow::Result<Exit> {
    let failed = |why: String| Failure::with(Exit::Broken, format!("{}: {why}", args.target.shown));
    let mut client = Client::builder()
        .no_proxy()
        .timeout(args.timeout)
        .redirect(Policy::none());
    if args.target.url.scheme() == "http" {
        // The URL needs no TLS here, so the client gets an empty list of authorities. With the
        // authorities of the system, the client could not be made in an image that has none.
        client = client.tls_certs_only([]);
    }
    if let Some(socket) = &args.target.socket {
        client = client.unix_socket(socket.clone());
    }
    let client = client.build().map_err(|error| failed(cause(&error)))?;
    let mut answer = client
        .get(args.target.url.clone())
        .send()
        .await
        .map_err(|error| failed(cause(&error)))?;
    let status = answer.status();
    if status.is_success() {
        return Ok(Exit::Done);
    }
    let mut body = Vec::new();
    while let Ok(Some(part)) = answer.chunk().await {
        body.extend_from_slice(&part);
        if body.len() > BODY_BYTES_MAX {
            break;
        }
    }
    let document: Option<serde_json::Value> = serde_json::from_slice(&body).ok();
    let why = document
        .as_ref()
        .and_then(|document| document["detail"].as_str())
        .unwrap_or_default();
    Err(failed(
        format!("{status} {}", shown::shortened(why, REASON_CHARS_MAX))
            .trim_end()
            .to_owned(),
    ))
}

/// Returns the innermost cause of an error, which names the problem.
fn cause(error: &reqwest::Error) -> String {
    let cause =
        std::iter::successors(std::error::Error::source(error), |cause| cause.source()).last();
    cause.map_or_else(|| error.to_string(), ToString::to_string)
}
