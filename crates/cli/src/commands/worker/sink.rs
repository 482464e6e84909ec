//! The sink of `seriatim worker`, and the options of HTTP sinks and of the sink `exec`.

use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ipnet::IpNet;
use rustix::fs::{FileType, fstat};
use seriatim::escape;
use seriatim::sink::{self, File, Null, Sink, SinkError};
use seriatim::worker::Shutdown;
use seriatim_console::exit::{self, Exit, Failure};
use seriatim_console::files::raise_limit;
use seriatim_console::global::Global;
use seriatim_console::nearest;
use seriatim_console::units::time;
use seriatim_exec::{Exec, ExecEach, ExecError, ParentEnd};
use seriatim_http::{
    Allowed, EventUrl, Exclusive, Format, Http, HttpError, Options, Prefix, Statuses,
};
use tracing::{info, warn};

use super::LOG;
use super::spec::Spec;

/// The limit of open files that an HTTP sink asks for, because it may send to thousands of hosts.
const FILES: u64 = 65_536;

/// The similarity of a parameter to `batch`, from 0 to 1, from which on it is probably a slip.
const LIKE_BATCH: f64 = 0.9;

/// The values of --sink-exclusive that stand for all URLs and for none, e.g. in the configuration
/// file.
const ALL: &str = "true";
const NONE: &str = "false";

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Options of HTTP sinks")]
pub(super) struct HttpArgs {
    /// The form of events: envelope, or cloudevents (CloudEvents 1.0, binary or batched) [default:
    /// envelope]
    #[arg(long, value_name = "FORMAT")]
    format: Option<Format>,
    /// Sign each request as Standard Webhooks says, with the secrets in this file. The file has one
    /// or two lines of the form whsec_BASE64. The files of HTTP sinks are read again when they
    /// change, after a 401, and at SIGHUP
    #[arg(long, env = "SERIATIM_SINK_SECRET_FILE", value_name = "FILE")]
    sink_secret_file: Option<PathBuf>,
    /// Add a header to each request; may be given more than once
    #[arg(long, value_name = "NAME: VALUE")]
    sink_header: Vec<String>,
    /// Add the headers in this file to each request. The file has one line NAME: VALUE for each
    /// header
    #[arg(long, env = "SERIATIM_SINK_HEADER_FILE", value_name = "FILE")]
    sink_header_file: Option<PathBuf>,
    /// The longest time from the sending of a request to its answer: 10ms to 1h [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = time)]
    sink_timeout: Option<Duration>,
    /// Send no request as long as the receiver may work on an earlier one of the same object: until it
    /// answers, or until --sink-timeout and 2s have passed. For event-url, =PREFIX limits this to URLs
    /// that begin with PREFIX; may be given more than once
    #[arg(long, value_name = "PREFIX", num_args = 0..=1, require_equals = true, default_missing_value = ALL)]
    sink_exclusive: Vec<String>,
    /// The largest age of connections: 1s to 24h. Then requests get new connections, and the
    /// receiver's name is looked up again [default: 2m]
    #[arg(long, value_name = "TIME", value_parser = time)]
    sink_connection_age: Option<Duration>,
    /// Change what statuses of answers mean: CODE=MEANING[,CODE=MEANING…], e.g.
    /// 404=reject,5xx=transient. The meanings are delivered, transient, reject, postpone (the
    /// receiver wants to be left alone) and unavailable; may be given more than once
    #[arg(long, value_name = "CODE=MEANING")]
    sink_status: Vec<Statuses>,
    /// Accept certificates from the authorities in this PEM file [default: those of the system]
    #[arg(long, env = "SERIATIM_SINK_CA", value_name = "FILE")]
    sink_ca: Option<PathBuf>,
    /// For event-url: send only to URLs that begin with PREFIX, e.g. https://billing.internal/, or
    /// https:// for all hosts; may be given more than once
    #[arg(long, value_name = "PREFIX")]
    allow: Vec<String>,
    /// For event-url: also send to hosts with these addresses although they are not public, e.g.
    /// 10.0.0.0/8; may be given more than once
    #[arg(long, value_name = "ADDRESS", value_parser = network)]
    allow_address: Vec<IpNet>,
    /// For event-url: URLs that begin with PREFIX may answer with effects, i.e. emit events and set
    /// schedules for any object [default: none]; may be given more than once
    #[arg(long, value_name = "PREFIX")]
    allow_effects: Vec<String>,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Options of the sinks exec, exec-each and stdio")]
pub(super) struct ExecArgs {
    /// The number of programs: 1 to 64. All events of an object go to the same one [default: 1]
    #[arg(long, value_name = "N")]
    exec_children: Option<usize>,
    /// The longest time from the beginning of an event to its result: 10ms to 24h. Then the program
    /// is asked to give the event up (exec-each: by SIGTERM), and 5s later it is killed; with stdio
    /// the worker ends [default: 5m]
    #[arg(long, value_name = "TIME", value_parser = time)]
    exec_timeout: Option<Duration>,
}

impl ExecArgs {
    /// Returns the name of the first option on the command line; `None` if it has none.
    fn given(&self) -> Option<&'static str> {
        let timeout = self.exec_timeout.map(|_| "--exec-timeout");
        self.exec_children.map(|_| "--exec-children").or(timeout)
    }

    fn options(&self) -> seriatim_exec::Options {
        let mut options = seriatim_exec::Options::default();
        options.children = self.exec_children.unwrap_or(options.children);
        options.timeout = self.exec_timeout.unwrap_or(options.timeout);
        options
    }
}

/// An open sink.
pub(super) struct Opened {
    pub(super) sink: Box<dyn Sink>,
    /// The sink `exec`. Its programs end after the worker.
    pub(super) exec: Option<Exec>,
    /// With the sink `stdio`, what ended the program that has started this worker.
    pub(super) gone: Arc<OnceLock<String>>,
}

impl Opened {
    fn only(sink: impl Sink) -> Self {
        let (sink, exec, gone) = (Box::new(sink), None, Arc::default());
        Self { sink, exec, gone }
    }
}

/// Parses an address, or a network of addresses.
fn network(text: &str) -> Result<IpNet, String> {
    let network = text
        .parse::<IpNet>()
        .or_else(|_| text.parse().map(|address: std::net::IpAddr| address.into()));
    network.map_err(|_| {
        "write an address or a network, e.g. 127.0.0.1, 10.0.0.0/8 or fd00::/8".to_owned()
    })
}

impl HttpArgs {
    /// Returns the name of the first HTTP option on the command line; `None` if it has none.
    fn given(&self) -> Option<&'static str> {
        let options = [
            ("--format", self.format.is_some()),
            ("--sink-secret-file", self.sink_secret_file.is_some()),
            ("--sink-header", !self.sink_header.is_empty()),
            ("--sink-header-file", self.sink_header_file.is_some()),
            ("--sink-timeout", self.sink_timeout.is_some()),
            ("--sink-connection-age", self.sink_connection_age.is_some()),
            ("--sink-exclusive", !self.sink_exclusive.is_empty()),
            ("--sink-status", !self.sink_status.is_empty()),
            ("--sink-ca", self.sink_ca.is_some()),
        ];
        options
            .into_iter()
            .find_map(|(name, is_given)| is_given.then_some(name))
            .or(self.given_for_event_url())
    }

    fn has_headers(&self) -> bool {
        !self.sink_header.is_empty() || self.sink_header_file.is_some()
    }

    /// Returns the name of the first option that is only for event-url; `None` if there is none.
    fn given_for_event_url(&self) -> Option<&'static str> {
        let options = [
            ("--allow", !self.allow.is_empty()),
            ("--allow-address", !self.allow_address.is_empty()),
            ("--allow-effects", !self.allow_effects.is_empty()),
            (
                "--sink-exclusive with a prefix",
                self.sink_exclusive
                    .iter()
                    .any(|prefix| ![ALL, NONE].contains(&prefix.as_str())),
            ),
        ];
        options
            .into_iter()
            .find_map(|(name, is_given)| is_given.then_some(name))
    }

    fn exclusive(&self) -> anyhow::Result<Exclusive> {
        match &self.sink_exclusive[..] {
            [] => Ok(Exclusive::None),
            [only] if only == NONE => Ok(Exclusive::None),
            [only] if only == ALL => Ok(Exclusive::All),
            several
                if several
                    .iter()
                    .any(|prefix| [ALL, NONE].contains(&prefix.as_str())) =>
            {
                Err(wrong(
                    "--sink-exclusive",
                    "give it alone, or with prefixes only",
                ))
            }
            several => Ok(Exclusive::Prefixes(prefixes("--sink-exclusive", several)?)),
        }
    }

    fn options(&self, global: &Global) -> anyhow::Result<Options> {
        let mut options = Options::default();
        options.format = self.format.unwrap_or_default();
        options.timeout = self.sink_timeout.unwrap_or(options.timeout);
        options.connection_age = self.sink_connection_age.unwrap_or(options.connection_age);
        options.exclusive = self.exclusive()?;
        options.ca_file = self.sink_ca.clone();
        for statuses in &self.sink_status {
            options
                .statuses
                .add(statuses.clone())
                .map_err(|error| wrong("--sink-status", error))?;
        }
        if let Some(namespace) = &global.namespace {
            options.source = format!("/seriatim/{namespace}");
        }
        for line in &self.sink_header {
            options
                .header_line(line)
                .map_err(|error| wrong("--sink-header", error))?;
        }
        (options.header_file, options.secret_file) =
            (self.sink_header_file.clone(), self.sink_secret_file.clone());
        Ok(options)
    }
}

/// Parses the prefixes of a flag.
fn prefixes(flag: &str, texts: &[String]) -> anyhow::Result<Vec<Prefix>> {
    let parse = |(at, text): (usize, &String)| {
        // The message has the number of the prefix, not its text, because the text may have a password.
        let wrong = |error: HttpError| {
            Failure::with(Exit::Input, format!("{flag}, number {}: {error}", at + 1))
        };
        text.parse().map_err(wrong)
    };
    texts.iter().enumerate().map(parse).collect()
}

/// Returns the error of a flag with a wrong value.
fn wrong(flag: &str, error: impl std::fmt::Display) -> anyhow::Error {
    Failure::with(Exit::Input, format!("{flag}: {error}"))
}

/// Returns the error of opening a sink. Some of these errors may pass by themselves, e.g. if a disk is
/// mounted or another process ends. So their exit code is not that of a wrong input.
fn unopened(error: SinkError) -> anyhow::Error {
    let exit = match &error {
        SinkError::File { .. } | SinkError::Locked { .. } | SinkError::Thread(_) => Exit::Broken,
        _ => Exit::Input,
    };
    Failure::with(exit, error)
}

/// Returns the error of opening an HTTP sink, with the flag that has the wrong value.
fn unopened_http(error: HttpError, args: &HttpArgs) -> anyhow::Error {
    match &error {
        HttpError::Range {
            setting,
            value,
            range,
        } => {
            let flag = format!("--sink-{}", setting.replace('_', "-"));
            Failure::with(Exit::Input, format!("{flag} is {value}; {range}"))
        }
        HttpError::File { path, .. } if args.sink_header_file.as_ref() == Some(path) => {
            wrong("--sink-header-file", &error)
        }
        HttpError::File { path, .. } if args.sink_secret_file.as_ref() == Some(path) => {
            wrong("--sink-secret-file", &error)
        }
        HttpError::Tls(_) if args.sink_ca.is_some() => wrong("--sink-ca", &error),
        HttpError::Threads(_) => Failure::with(Exit::Broken, error),
        _ => Failure::with(Exit::Input, error),
    }
}

/// Returns the error of opening the sink `exec`, with the flag that has the wrong value.
fn unopened_exec(error: ExecError) -> anyhow::Error {
    match &error {
        ExecError::Range {
            setting,
            value,
            range,
        } => {
            let message = format!("--exec-{setting} is {value}; {range}");
            Failure::with(Exit::Input, message)
        }
        _ => wrong("--sink", error),
    }
}

/// Parses the value of --sink. This is not done by the parser of the command line: its error would
/// repeat a wrong text, which may have a password.
pub(crate) fn parse(text: &str) -> anyhow::Result<Spec> {
    text.parse()
        .map_err(|error| Failure::with(Exit::Input, format!("--sink: {error}")))
}

/// Checks that all given options of sinks are for this kind of sink.
fn wanted(spec: &Spec, args: &HttpArgs, exec: &ExecArgs) -> anyhow::Result<()> {
    let unwanted_exec = match spec {
        Spec::Exec(_) => None,
        Spec::ExecEach(_) | Spec::Stdio => exec
            .exec_children
            .map(|_| ("--exec-children", "--sink exec")),
        _ => exec.given().map(|name| (name, "--sink exec")),
    };
    let unwanted = match spec {
        Spec::EventUrl(_) => None,
        Spec::Http(_) => args
            .given_for_event_url()
            .map(|name| (name, "--sink event-url")),
        _ => args.given().map(|name| (name, "an HTTP sink")),
    };
    if let Some((name, sink)) = unwanted.or(unwanted_exec) {
        return Err(Failure::with(
            Exit::Input,
            format!("{name} is only for {sink}; the sink is {spec}"),
        ));
    }
    Ok(())
}

/// Checks the sink and its options. Reads the files that the options name, and opens nothing else.
pub(super) fn check(
    spec: &Spec,
    args: &HttpArgs,
    exec: &ExecArgs,
    slots: usize,
    global: &Global,
) -> anyhow::Result<()> {
    wanted(spec, args, exec)?;
    match spec {
        // An HTTP sink can be opened for a check, because it sends nothing before the first
        // delivery.
        Spec::Http(_) | Spec::EventUrl(_) => {
            open(spec, args, exec, slots, global, &Shutdown::new()).map(drop)
        }
        Spec::Exec(_) | Spec::ExecEach(_) | Spec::Stdio => {
            exec.options().check().map_err(unopened_exec)
        }
        _ => Ok(()),
    }
}

/// Warns of a parameter of the sink's URL that looks like `batch`. The receiver gets it, and each
/// request has one event.
pub(super) fn warn_of_slips(sink: &str) {
    if !sink.starts_with("http") {
        return;
    }
    let query = sink.split_once('?').map_or("", |(_, query)| query);
    let names = query.split('&').filter_map(|one| one.split('=').next());
    for name in names.filter(|name| *name != "batch") {
        if nearest::nearest(name, std::iter::once("batch"), LIKE_BATCH).is_some() {
            let name = escape::text(name).to_string();
            warn!(target: LOG, name, "the receiver gets this parameter of the URL; did you mean batch?");
        }
    }
}

/// Returns whether the output is a pipe or a socket.
fn is_pipe(output: impl AsFd) -> bool {
    let kind = fstat(output).map(|stat| FileType::from_raw_mode(stat.st_mode));
    matches!(kind, Ok(FileType::Fifo | FileType::Socket))
}

/// Returns the failure of a worker whose program has ended or erred.
pub(super) fn parent_failure(why: &str) -> anyhow::Error {
    Failure::with(Exit::Broken, format!("--sink stdio: {why}"))
}

/// Ends the process at once, as a crash: it keeps its name and its events, so that each event that the
/// program had counts a crash.
fn die(why: &str) {
    let _ = exit::report(&parent_failure(why));
    std::process::exit(Exit::Broken as i32);
}

/// The longest time in which a worker whose program is dead gives its events back. Afterwards it ends
/// at once, as a crash.
const GIVES_BACK_WITHIN: Duration = Duration::from_secs(5);

/// Stops the worker of a program that has closed the input.
fn stop_without_parent(why: String, gone: &OnceLock<String>, shutdown: &Shutdown) {
    shutdown.stop();
    let late = why.clone();
    let _ = gone.set(why);
    tokio::spawn(async move {
        tokio::time::sleep(GIVES_BACK_WITHIN).await;
        die(&late);
    });
}

/// Opens the sink. If the sink is standard output and nobody reads it any more, the worker stops.
/// `slots`: the concurrency of the worker.
pub(super) fn open(
    spec: &Spec,
    args: &HttpArgs,
    exec: &ExecArgs,
    slots: usize,
    global: &Global,
    shutdown: &Shutdown,
) -> anyhow::Result<Opened> {
    let unopened_http = |error| unopened_http(error, args);
    wanted(spec, args, exec)?;
    if matches!(spec, Spec::Http(_) | Spec::EventUrl(_)) {
        raise_limit(FILES);
    }
    let options = || args.options(global);
    match spec {
        Spec::Exec(command) => {
            let exec = Exec::open(command.clone(), exec.options()).map_err(unopened_exec)?;
            let sink = Box::new(exec.clone());
            Ok(Opened {
                sink,
                exec: Some(exec),
                gone: Arc::default(),
            })
        }
        Spec::ExecEach(command) => Ok(Opened::only(
            ExecEach::open(command.clone(), exec.options()).map_err(unopened_exec)?,
        )),
        Spec::Stdio => {
            let (shutdown, gone) = (shutdown.clone(), Arc::default());
            let set = Arc::clone(&gone);
            let ends = move |end| match end {
                ParentEnd::Broken(why) => die(&why),
                ParentEnd::Closed(why) => stop_without_parent(why, &set, &shutdown),
                _ => shutdown.stop(),
            };
            let exec = Exec::parent(exec.options(), ends).map_err(unopened_exec)?;
            let sink = Box::new(exec.clone());
            Ok(Opened {
                sink,
                exec: Some(exec),
                gone,
            })
        }
        Spec::Http(target) => Ok(Opened::only(
            Http::to(target.clone())
                .options(options()?)
                .open()
                .map_err(unopened_http)?,
        )),
        Spec::EventUrl(pointer) => {
            let prefixes = prefixes("--allow", &args.allow)?;
            if prefixes.iter().any(Prefix::is_any_host)
                && (args.sink_secret_file.is_some() || args.has_headers())
            {
                warn!(target: LOG, "every host gets the same signatures and headers: a receiver can use them against another one");
            }
            let options = options()?;
            // A prefix that fits no allowed URL is probably a slip.
            let fit = |flag: &str, some: &[Prefix], what: &str| {
                let is_allowed = |only: &Prefix| prefixes.iter().any(|allowed| allowed.meets(only));
                some.iter()
                    .position(|only| !is_allowed(only))
                    .map_or(Ok(()), |at| {
                        let why = format!("no prefix of --allow fits it, so {what}");
                        Err(wrong(&format!("{flag}, number {}", at + 1), why))
                    })
            };
            if let Exclusive::Prefixes(exclusive) = &options.exclusive {
                fit(
                    "--sink-exclusive",
                    exclusive,
                    "no request would be exclusive by it",
                )?;
            }
            let effects_from = self::prefixes("--allow-effects", &args.allow_effects)?;
            fit(
                "--allow-effects",
                &effects_from,
                "no answer would have effects by it",
            )?;
            let allowed = Allowed::new(prefixes).networks(args.allow_address.iter().copied());
            Ok(Opened::only(
                EventUrl::at(pointer.clone(), allowed)
                    .options(options)
                    .slots(slots)
                    .effects_from(effects_from)
                    .open()
                    .map_err(unopened_http)?,
            ))
        }
        Spec::Stdout => {
            let stdout = sink::stdout().map_err(unopened)?;
            if is_pipe(io::stdout()) {
                warn!(target: LOG, "if the reader of this pipe dies, it loses the lines that it has not read; the sink file:PATH loses none");
            }
            let (closed, shutdown) = (stdout.closed(), shutdown.clone());
            tokio::spawn(async move {
                closed.cancelled().await;
                info!(target: LOG, "standard output is closed");
                shutdown.stop();
            });
            Ok(Opened::only(stdout))
        }
        Spec::File(path) => Ok(Opened::only(File::open(path).map_err(unopened)?)),
        Spec::Null => Ok(Opened::only(Null)),
    }
}
