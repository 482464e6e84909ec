//! `seriatim doctor`.

use std::path::Path;
use std::time::Duration;

use seriatim::Emitter;
use seriatim::control::{Finding, Verdict};
use seriatim_console::exit::Exit;
use seriatim_console::failures;
use seriatim_console::global::Global;
use seriatim_console::shown;
use seriatim_http::Target;

use crate::commands::worker::sink;
use crate::commands::worker::spec::Spec;

/// Examine whether this Redis is fit for seriatim, and whether the sink can be used
///
/// Looks at the version, the memory policy, persistence, replicas, the clock, the connection and
/// the rights of the user, and says what to change. Connects in each way in which the program
/// connects: as an emitter, a worker and an operator. Writes nothing to Redis. The exit code is 1 if
/// something is wrong. Otherwise it is 0, even if there are warnings.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Also examine this sink of a worker. If the sink is a URL, only test whether its host accepts
    /// connections
    #[arg(long, value_name = "SINK")]
    sink: Option<String>,
    /// Print one JSON object instead of lines. Its member "fits" is null if nothing is wrong, but
    /// something is unknown
    #[arg(long)]
    json: bool,
}

/// The longest attempt to connect to a sink.
const PATIENCE: Duration = Duration::from_secs(5);

/// One line of the output: the examined thing, its verdict, and a text.
#[derive(serde::Serialize)]
struct Line {
    what: String,
    verdict: Verdict,
    text: String,
}

impl From<Finding> for Line {
    fn from(
        Finding {
            what,
            verdict,
            text,
            ..
        }: Finding,
    ) -> Self {
        Self {
            what: what.to_owned(),
            verdict,
            text,
        }
    }
}

pub(crate) async fn run(args: Args, global: &Global) -> anyhow::Result<Exit> {
    let route = global.route()?;
    let sink = args.sink.as_deref().map(sink::parse).transpose()?;
    let line = |what: &str, verdict: Verdict, text: &str| Line {
        what: what.to_owned(),
        verdict,
        text: text.to_owned(),
    };
    let mut lines = Vec::new();
    match examine(global).await {
        Ok(found) => {
            lines.extend(found.into_iter().map(Line::from));
            // The emitter checks more at its connect than other parts of the program do.
            lines.push(match emitter(global).await {
                Ok(()) => line("emits", Verdict::Good, "an emitter can connect"),
                Err(error) => line(
                    "emits",
                    Verdict::Wrong,
                    &format!("an emitter cannot connect: {error:#}"),
                ),
            });
            lines.push(match route.scheme() {
                "rediss" => line(
                    "connection",
                    Verdict::Good,
                    "TLS, with a verified certificate",
                ),
                _ if route.is_local() => {
                    line("connection", Verdict::Good, "this machine, without TLS")
                }
                _ => line(
                    "connection",
                    Verdict::Warning,
                    "no TLS: others on the way can read and change everything; use rediss://",
                ),
            });
        }
        Err(error) => lines.push(line("connection", Verdict::Wrong, &format!("{error:#}"))),
    }
    match &sink {
        None => {}
        Some(Spec::File(path)) => lines.push(match writable(path) {
            Ok(text) => line("sink", Verdict::Good, &text),
            Err(error) => line(
                "sink",
                Verdict::Wrong,
                &format!("{} cannot be written: {error}", path.display()),
            ),
        }),
        Some(Spec::Http(target)) => lines.push(match reachable(target).await {
            Ok(text) => line("sink", Verdict::Good, &text),
            Err(error) => line(
                "sink",
                Verdict::Wrong,
                &format!("{target} cannot be reached: {error}"),
            ),
        }),
        Some(Spec::EventUrl(_)) => {
            lines.push(line("sink", Verdict::Unknown, "the events have the URLs"))
        }
        Some(Spec::Exec(command) | Spec::ExecEach(command)) => lines.push(match command.find() {
            Ok(path) => line(
                "sink",
                Verdict::Good,
                &format!("{} can be started; it was not", path.display()),
            ),
            Err(error) => line(
                "sink",
                Verdict::Wrong,
                &format!("{command} cannot be started: {error}"),
            ),
        }),
        Some(Spec::Stdout | Spec::Null | Spec::Stdio) => {
            lines.push(line("sink", Verdict::Good, "can always be written"))
        }
    }
    let has = |verdict| lines.iter().any(|line| line.verdict == verdict);
    let is_wrong = has(Verdict::Wrong);
    let fits = match (is_wrong, has(Verdict::Unknown)) {
        (true, _) => Some(false),
        (false, true) => None,
        (false, false) => Some(true),
    };
    let text = match args.json {
        true => serde_json::json!({ "findings": lines, "fits": fits }).to_string() + "\n",
        false => print(&lines),
    };
    shown::print(&text)?;
    Ok(if is_wrong { Exit::Broken } else { Exit::Done })
}

async fn emitter(global: &Global) -> anyhow::Result<()> {
    let emitter = Emitter::builder(global.server())
        .keys(global.keys()?)
        .connect()
        .await;
    emitter.map(drop).map_err(failures::emit)
}

async fn examine(global: &Global) -> anyhow::Result<Vec<Finding>> {
    let control = global.control().await?;
    control.examine().await.map_err(shown::failure)
}

/// Checks whether the file can be written, without changing it. If the file does not exist, checks
/// whether a file can be created in its directory.
fn writable(path: &Path) -> std::io::Result<String> {
    if let Ok(about) = path.metadata() {
        if !about.is_file() {
            return Err(std::io::Error::other("it is no regular file"));
        }
        std::fs::OpenOptions::new().append(true).open(path)?;
        return Ok(format!("{} can be written", path.display()));
    }
    let dir = path
        .parent()
        .filter(|dir| !dir.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    tempfile::tempfile_in(dir)?;
    Ok(format!("{} can be made", path.display()))
}

/// Connects to the host of the URL, and sends nothing.
async fn reachable(target: &Target) -> std::io::Result<String> {
    let (host, port) = target.address();
    tokio::time::timeout(
        PATIENCE,
        tokio::net::TcpStream::connect((host.as_str(), port)),
    )
    .await??;
    Ok(format!(
        "{host}:{port} accepts connections; no request was sent"
    ))
}

fn print(lines: &[Line]) -> String {
    let mut out = String::new();
    for Line {
        what,
        verdict,
        text,
    } in lines
    {
        let word = match verdict {
            Verdict::Good => "ok",
            Verdict::Warning => "warning",
            Verdict::Wrong => "WRONG",
            Verdict::Unknown => "unknown",
        };
        out += &shown::wrapped(
            &format!("{word:<8} {what:<12} {text}"),
            usize::from(shown::COLUMNS) - 22,
            22,
        );
        out.push('\n');
    }
    out
}
