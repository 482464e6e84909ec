//! The settings of requests that files have: headers, secrets, and the authorities for TLS.
//!
//! The files are read again when they change, after a 401, and when the sink is opened anew
//! (SIGHUP). If a file has a mistake, the former settings stay, and the mistake is logged.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use reqwest::header::HeaderMap;
use rustls::{ClientConfig, RootCertStore};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout};
use tracing::{info, warn};

use super::LOG;
use super::error::HttpError;
use super::options::Options;
use super::signature::Secret;
use super::tls::{authorities, trusting};

/// Interval at which the files are looked at, while requests are sent.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The longest time for which a request waits for a look. A file system may not answer.
const LOOK_WAIT: Duration = Duration::from_millis(100);
/// The largest file of secrets or headers, in bytes.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// The present settings of requests.
#[derive(Clone)]
pub(super) struct Current {
    authorities: Arc<RootCertStore>,
    pub(super) tls: Arc<ClientConfig>,
    pub(super) headers: HeaderMap,
    pub(super) secrets: Vec<Secret>,
}

/// The settings, and their files.
pub(super) struct Settings(Arc<Shared>);

struct Shared {
    options: Options,
    needs_tls: bool,
    current: RwLock<Arc<Current>>,
    seen: Mutex<LastRead>,
    /// Held during a look, so that a file system that does not answer stops one thread only.
    looking: Arc<tokio::sync::Mutex<()>>,
}

/// The files as they were when they were read last.
#[derive(Default)]
struct LastRead {
    /// The time of the last look.
    at: Option<Instant>,
    /// The time of the last reading after a 401. A look just before it may have found no change.
    refused_at: Option<Instant>,
    files: Vec<Option<Stamp>>,
    texts: Vec<Vec<u8>>,
}

/// The properties of a file of which one changes with its content: the times of its content (which can be
/// set to any time) and of its last change, its size, and its number.
type Stamp = ([i64; 4], u64, u64, u64);

impl Settings {
    /// Reads the settings for the first time. `needs_tls`: whether a URL begins with `https`.
    pub(super) fn open(options: &Options, needs_tls: bool) -> Result<Self, HttpError> {
        let seen = LastRead {
            at: Some(Instant::now()),
            refused_at: None,
            files: stamps(options),
            texts: texts(options),
        };
        let current = RwLock::new(Arc::new(read(options, needs_tls)?));
        Ok(Self(Arc::new(Shared {
            options: options.clone(),
            needs_tls,
            current,
            seen: Mutex::new(seen),
            looking: Arc::default(),
        })))
    }

    pub(super) fn now(&self) -> Arc<Current> {
        self.0.now()
    }

    /// Returns whether any setting is in a file.
    pub(super) fn has_files(&self) -> bool {
        paths(&self.0.options).next().is_some()
    }

    /// Looks at the files, at most once per second. Requests that begin during a look wait for its
    /// end, so that the first requests after a long pause have the present headers and secrets. If
    /// the look takes longer than [`LOOK_WAIT`], it goes on in the background.
    pub(super) async fn look(&self) {
        if !self.has_files() {
            return;
        }
        let look = async {
            let looking = Arc::clone(&self.0.looking).lock_owned().await;
            if self.0.is_due(|seen| &mut seen.at) {
                let shared = Arc::clone(&self.0);
                let look = spawn_blocking(move || {
                    shared.look(false);
                    drop(looking);
                });
                let _ = look.await;
            }
        };
        let _ = timeout(LOOK_WAIT, look).await;
    }

    /// Reads the files again, at most once per second. Returns whether the settings differ from
    /// these.
    pub(super) async fn differ_from(&self, used: &Arc<Current>) -> bool {
        if self.has_files() && self.0.is_due(|seen| &mut seen.refused_at) {
            let shared = Arc::clone(&self.0);
            let _ = spawn_blocking(move || shared.look(true)).await;
        }
        !Arc::ptr_eq(&self.now(), used)
    }

    /// Reads the files again.
    pub(super) async fn read_again(&self) -> Result<(), HttpError> {
        let shared = Arc::clone(&self.0);
        spawn_blocking(move || shared.read_again())
            .await
            .unwrap_or_else(|error| Err(HttpError::Client(error.to_string())))
    }
}

impl Shared {
    fn now(&self) -> Arc<Current> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn seen(&self) -> MutexGuard<'_, LastRead> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the next look is due, and counts this one. `last`: the time of the last one.
    fn is_due(&self, last: impl FnOnce(&mut LastRead) -> &mut Option<Instant>) -> bool {
        let (mut seen, now) = (self.seen(), Instant::now());
        let last = last(&mut seen);
        let is_due = last.is_none_or(|at| now.duration_since(at) >= LOOK_EVERY);
        if is_due {
            *last = Some(now);
        }
        is_due
    }

    /// Reads the files again if they have changed. `anyway`: even if they seem to be the same.
    fn look(&self, anyway: bool) {
        let files = stamps(&self.options);
        let has_changed = std::mem::replace(&mut self.seen().files, files.clone()) != files;
        if (has_changed || anyway)
            && let Err(error) = self.read_again()
            && has_changed
        {
            warn!(target: LOG, %error, "deliver: a file of the HTTP sink cannot be read again; its former content stays");
        }
    }

    fn read_again(&self) -> Result<(), HttpError> {
        let texts = texts(&self.options);
        let mut current = read(&self.options, self.needs_tls)?;
        let before = self.now();
        let mut seen = self.seen();
        // The clients compare the settings of TLS by their place in memory. With the same
        // authorities, connections stay. Those of the system may change, too.
        if current.authorities.roots == before.authorities.roots {
            if seen.texts == texts {
                return Ok(());
            }
            current.tls = Arc::clone(&before.tls);
        }
        seen.texts = texts;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(current);
        info!(target: LOG, "deliver: the files of the HTTP sink are read again");
        Ok(())
    }
}

/// Returns the files of the settings; the file with the authorities is the last one.
fn paths(options: &Options) -> impl Iterator<Item = &Path> {
    [&options.header_file, &options.secret_file, &options.ca_file]
        .into_iter()
        .flatten()
        .map(PathBuf::as_path)
}

fn stamps(options: &Options) -> Vec<Option<Stamp>> {
    let stamp = |path: &Path| {
        let file = std::fs::metadata(path).ok()?;
        Some((
            [
                file.mtime(),
                file.mtime_nsec(),
                file.ctime(),
                file.ctime_nsec(),
            ],
            file.len(),
            file.ino(),
            file.dev(),
        ))
    };
    paths(options).map(stamp).collect()
}

/// Returns the contents of the files. A file that cannot be read counts as empty; reading the
/// settings then tells its error.
fn texts(options: &Options) -> Vec<Vec<u8>> {
    let files = [&options.header_file, &options.secret_file, &options.ca_file];
    files
        .into_iter()
        .map(|path| {
            path.as_ref()
                .and_then(|path| std::fs::read(path).ok())
                .unwrap_or_default()
        })
        .collect()
}

fn read(options: &Options, needs_tls: bool) -> Result<Current, HttpError> {
    let mut all = options.clone();
    if let Some(path) = &options.header_file {
        let in_file = |error: HttpError| HttpError::File {
            path: path.clone(),
            why: error.to_string(),
        };
        for line in lines(path)? {
            all.header_line(&line).map_err(in_file)?;
        }
    }
    if let Some(path) = &options.secret_file {
        let in_file = |why: String| HttpError::File {
            path: path.clone(),
            why,
        };
        let secrets: Result<Vec<Secret>, _> =
            lines(path)?.iter().map(|line| line.parse()).collect();
        let secrets = secrets.map_err(|error| in_file(error.to_string()))?;
        if secrets.is_empty() {
            return Err(in_file(
                "it has no secret; write one or two lines whsec_BASE64".to_owned(),
            ));
        }
        all.secrets.extend(secrets);
        all.validate().map_err(|error| in_file(error.to_string()))?;
    }
    let authorities =
        authorities(all.ca_file.as_deref(), needs_tls, "--sink-ca").map_err(HttpError::Tls)?;
    let tls = trusting(Arc::clone(&authorities)).map_err(HttpError::Tls)?;
    Ok(Current {
        authorities,
        tls: Arc::new(tls),
        headers: all.headers().clone(),
        secrets: all.secrets,
    })
}

/// Returns the lines of a small file that are not empty.
fn lines(path: &Path) -> Result<Vec<String>, HttpError> {
    use std::io::Read as _;
    let failed = |why: String| HttpError::File {
        path: path.to_owned(),
        why,
    };
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|error| failed(error.to_string()))?;
    file.take(FILE_BYTES_MAX + 1)
        .read_to_string(&mut text)
        .map_err(|error| failed(error.to_string()))?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(failed("it has more than 64 KiB".to_owned()));
    }
    Ok(text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect())
}
