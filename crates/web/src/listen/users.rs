//! The users file: a line `NAME SHA256 RIGHT[,RIGHT…] [PREFIX…]` for each user.
//!
//! The file has only the hash of each token. Empty lines and lines that begin with `#` are ignored.
//! Each line must end with a line feed.

use std::path::Path;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use ring::digest::{SHA256, digest};
use subtle::{Choice, ConstantTimeEq as _};

use super::problem::Problem;
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, StatusCode};
use seriatim_console::named;

/// The largest users file, in bytes.
const FILE_BYTES_MAX: u64 = 1024 * 1024;
/// The longest name of a user, in bytes.
const NAME_BYTES_MAX: usize = 64;
/// If there is no users file, the user name of every request.
pub(crate) const EVERYBODY: &str = "http";

/// A right of a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Right {
    Emit,
    View,
    Pause,
    Operate,
}

impl Right {
    pub(crate) const ALL: [(&str, Self); 4] = [
        ("emit", Self::Emit),
        ("view", Self::View),
        ("pause", Self::Pause),
        ("operate", Self::Operate),
    ];

    fn word(self) -> &'static str {
        Self::ALL
            .iter()
            .find(|(_, right)| *right == self)
            .map_or("", |(word, _)| word)
    }
}

/// A user who is known by a token. Without a users file, the user for everybody.
#[derive(Debug, Clone)]
pub(crate) struct User {
    pub(crate) name: Arc<str>,
    granted: Arc<Granted>,
}

/// The rights of a user, and the objects for which they count.
#[derive(Debug)]
struct Granted {
    rights: Vec<Right>,
    /// The prefixes of the names of objects for which the user has the rights; empty: all objects.
    prefixes: Vec<String>,
}

impl User {
    /// Returns the user for everybody, who has all rights. This user is for requests if there is no
    /// users file.
    pub(crate) fn everybody() -> Self {
        static ALL: LazyLock<User> = LazyLock::new(|| {
            User::with_rights(EVERYBODY, Right::ALL.map(|(_, right)| right).to_vec())
        });
        ALL.clone()
    }

    /// Returns a user with these rights for all objects.
    pub(crate) fn with_rights(name: &str, rights: Vec<Right>) -> Self {
        Self::with_prefixes(name, rights, Vec::new())
    }

    fn with_prefixes(name: &str, rights: Vec<Right>, prefixes: Vec<String>) -> Self {
        Self {
            name: name.into(),
            granted: Arc::new(Granted { rights, prefixes }),
        }
    }

    /// Takes all rights away except the right `view`.
    pub(crate) fn only_viewing(self) -> Self {
        let Granted { rights, prefixes } = &*self.granted;
        let views = rights.iter().filter(|right| **right == Right::View);
        Self::with_prefixes(&self.name, views.copied().collect(), prefixes.clone())
    }

    /// Returns whether the user has no right but `view`.
    pub(crate) fn is_viewer(&self) -> bool {
        self.granted
            .rights
            .iter()
            .all(|right| *right == Right::View)
    }

    /// Returns whether the user sees only some objects.
    pub(crate) fn is_limited(&self) -> bool {
        !self.granted.prefixes.is_empty()
    }

    /// Returns the prefix with which a list is read if the user filters its names by this one; `None`
    /// if no object of the user has it.
    ///
    /// A prefix that is shorter than those of the user is made longer, up to the beginning that they
    /// share. Otherwise the user could find out by many filters how names of other objects begin,
    /// because a list with more rows has a next page.
    pub(crate) fn narrowed<'a>(&'a self, prefix: &'a [u8]) -> Option<&'a [u8]> {
        if self.has(prefix) {
            return Some(prefix);
        }
        let mut longer = self
            .granted
            .prefixes
            .iter()
            .map(String::as_bytes)
            .filter(|own| own.starts_with(prefix));
        let first = longer.next()?;
        let shared = |beginning: usize, own: &[u8]| {
            first
                .iter()
                .zip(own)
                .take(beginning)
                .take_while(|(a, b)| a == b)
                .count()
        };
        Some(&first[..longer.fold(first.len(), shared)])
    }

    /// Checks that the user has this right for all objects.
    pub(crate) fn may_all(&self, right: Right) -> Result<(), Problem> {
        self.may_some(right)?;
        if self.granted.prefixes.is_empty() {
            return Ok(());
        }
        let prefixes = self.granted.prefixes.join(" or ");
        Err(self.refused(&format!(
            "this concerns all objects, and {} may {} only objects that begin with {prefixes}",
            self.name,
            right.word()
        )))
    }

    /// Checks that the user has this right for at least some objects.
    pub(crate) fn may_some(&self, right: Right) -> Result<(), Problem> {
        if self.granted.rights.contains(&right) {
            return Ok(());
        }
        Err(self.refused(&format!(
            "{} does not have the right {}",
            self.name,
            right.word()
        )))
    }

    /// Checks that the user has this right for this object. If `object` is a prefix, checks it for
    /// all objects with this prefix.
    pub(crate) fn may(&self, right: Right, object: &[u8]) -> Result<(), Problem> {
        self.may_some(right)?;
        if self.has(object) {
            return Ok(());
        }
        Err(self.refused(&format!(
            "{} does not have the right {} for this object",
            self.name,
            right.word()
        )))
    }

    /// Returns whether the user's rights include this object.
    pub(crate) fn has(&self, object: &[u8]) -> bool {
        self.granted.prefixes.is_empty()
            || self
                .granted
                .prefixes
                .iter()
                .any(|prefix| object.starts_with(prefix.as_bytes()))
    }

    /// Returns whether the user's rights can include any object whose name begins with this text.
    pub(crate) fn has_some(&self, beginning: &[u8]) -> bool {
        self.has(beginning)
            || self
                .granted
                .prefixes
                .iter()
                .any(|prefix| prefix.as_bytes().starts_with(beginning))
    }

    fn refused(&self, detail: &str) -> Problem {
        Problem::new(StatusCode::FORBIDDEN, "forbidden", detail)
    }
}

/// Returns the token of the header `Authorization: Bearer TOKEN`.
pub(crate) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// All users.
pub(crate) struct Users(RwLock<Vec<([u8; 32], User)>>);

impl Users {
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        Ok(Self(RwLock::new(read(path)?)))
    }

    /// Reads the file again. If this fails, the present users stay.
    pub(super) fn read_again(&self, path: &Path) -> Result<(), String> {
        let users = read(path)?;
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = users;
        Ok(())
    }

    /// Returns the user with this token. Always compares all users, so that the time does not show
    /// whether a token is almost right.
    pub(crate) fn of(&self, token: &str) -> Option<User> {
        self.of_hash(&hash(token))
    }

    /// Returns the user whose token has this hash. It serves a session, which keeps only the hash.
    pub(crate) fn of_hash(&self, shown: &[u8; 32]) -> Option<User> {
        let users = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let mut found = None;
        for (at, (hash, _)) in users.iter().enumerate() {
            let same: Choice = hash.ct_eq(shown);
            if same.into() {
                found = Some(at);
            }
        }
        found
            .and_then(|at| users.get(at))
            .map(|(_, user)| user.clone())
    }
}

pub fn hash(token: &str) -> [u8; 32] {
    let mut out = [0; 32];
    out.copy_from_slice(digest(&SHA256, token.as_bytes()).as_ref());
    out
}

fn read(path: &Path) -> Result<Vec<([u8; 32], User)>, String> {
    use std::io::Read as _;
    let failed = |why: String| format!("the users file {}: {why}", path.display());
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|error| failed(error.to_string()))?;
    file.take(FILE_BYTES_MAX + 1)
        .read_to_string(&mut text)
        .map_err(|error| failed(error.to_string()))?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(failed("it has more than 1 MiB".to_owned()));
    }
    parse(&text).map_err(failed)
}

fn parse(text: &str) -> Result<Vec<([u8; 32], User)>, String> {
    // A line that is cut off may give more rights than the complete line, e.g. without its
    // prefixes. So the last line must be complete.
    if !text.is_empty() && !text.ends_with('\n') {
        return Err("its last line has no line feed; it may be cut off".to_owned());
    }
    let mut users: Vec<([u8; 32], User)> = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (hash, user) = parse_line(line).map_err(|why| format!("line {}: {why}", at + 1))?;
        if users.iter().any(|(other, _)| *other == hash) {
            return Err(format!("line {}: another user has this token", at + 1));
        }
        users.push((hash, user));
    }
    if users.is_empty() {
        Err("it has no user; `seriatim token new` makes a line".to_owned())
    } else {
        Ok(users)
    }
}

fn parse_line(line: &str) -> Result<([u8; 32], User), String> {
    let mut words = line.split_whitespace();
    let (Some(name), Some(hash), Some(rights)) = (words.next(), words.next(), words.next()) else {
        return Err("write NAME SHA256 RIGHT[,RIGHT…] [PREFIX…]".to_owned());
    };
    check_name(name)?;
    let hash = decoded(hash).ok_or("the second word is not a SHA-256 in hex: 64 digits")?;
    let rights = rights
        .split(',')
        .map(parse_right)
        .collect::<Result<_, _>>()?;
    let prefixes = words.map(prefix_of).collect::<Result<_, _>>()?;
    Ok((hash, User::with_prefixes(name, rights, prefixes)))
}

pub fn check_name(name: &str) -> Result<(), String> {
    let is_valid = (1..=NAME_BYTES_MAX).contains(&name.len())
        && name.chars().all(|c| !c.is_control() && !c.is_whitespace());
    if is_valid && !name.starts_with('#') {
        Ok(())
    } else {
        Err("a name has 1 to 64 bytes without spaces".to_owned())
    }
}

/// Returns the prefix that a word of the users file stands for. The word is escaped as the names of
/// objects in every output. So a prefix with a space has the escape `\x20`.
pub fn prefix_of(word: &str) -> Result<String, String> {
    if word.is_empty() || word.contains(|c: char| c.is_control() || c.is_whitespace()) {
        return Err(
            "a prefix has at least one character, and no spaces; write \\x20 for a space"
                .to_owned(),
        );
    }
    let prefix = named::text(word)?;
    named::check_prefix(prefix.as_bytes())?;
    if prefix.contains(char::is_control) {
        Err(format!("the prefix {word:?} has a control character"))
    } else {
        Ok(prefix)
    }
}

pub fn parse_right(word: &str) -> Result<Right, String> {
    let found = Right::ALL.iter().find(|(known, _)| *known == word);
    found.map(|(_, right)| *right).ok_or_else(|| {
        format!("{word:?} is not a right; the rights are emit, view, pause and operate")
    })
}

fn decoded(hex: &str) -> Option<[u8; 32]> {
    let mut out = [0; 32];
    if hex.len() != 64 || !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (at, byte) in out.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The SHA-256 of `hunter2`.
    const HUNTER2: &str = "f52fbd32b2b3b86ff88ef6c490628285f482af15ddcb29541f94bcf526a3f6c7";

    fn users(text: &str) -> Users {
        Users(RwLock::new(parse(text).expect("users")))
    }

    #[test]
    fn a_token_is_known_by_its_hash() {
        let users = users(&format!(
            "# the team\n\n ada {HUNTER2} emit,view work: user:\n"
        ));
        let ada = users.of("hunter2").expect("known");
        assert_eq!(&*ada.name, "ada");
        assert!(ada.may(Right::Emit, b"work:1").is_ok() && ada.may(Right::View, b"user:1").is_ok());
        assert_eq!(
            ada.may(Right::Emit, b"other:1")
                .map_err(|problem| problem.status()),
            Err(StatusCode::FORBIDDEN)
        );
        assert!(ada.may(Right::Operate, b"work:1").is_err() && ada.may_all(Right::View).is_err());
        assert!(users.of("hunter3").is_none() && users.of("").is_none());
    }

    #[test]
    fn a_filter_is_not_shorter_than_the_prefixes() {
        let ada = users(&format!("ada {HUNTER2} view work: user: us:\n"))
            .of("hunter2")
            .expect("known");
        for (filter, narrowed) in [
            ("work:1", Some("work:1")),
            ("w", Some("work:")),
            ("", Some("")),
            ("u", Some("us")),
            ("use", Some("user:")),
            ("x", None),
        ] {
            assert_eq!(
                ada.narrowed(filter.as_bytes()),
                narrowed.map(str::as_bytes),
                "{filter}"
            );
        }
        assert_eq!(User::everybody().narrowed(b"x"), Some(b"x".as_slice()));
    }

    #[test]
    fn without_prefixes_a_user_has_all_objects() {
        let user = User::everybody();
        assert!(
            Right::ALL
                .iter()
                .all(|(_, right)| user.may_all(*right).is_ok())
        );
    }

    #[test]
    fn a_wrong_line_is_named() {
        for (text, why) in [
            ("", "no user"),
            ("ada\n", "line 1: write NAME"),
            (
                &format!("\nada {HUNTER2} all\n"),
                "line 2: \"all\" is not a right",
            ),
            ("ada abc emit\n", "not a SHA-256"),
            (
                &format!("{} {HUNTER2} emit\n", "x".repeat(65)),
                "1 to 64 bytes",
            ),
            (
                &format!("ada {HUNTER2} emit\nbob {HUNTER2} view\n"),
                "line 2: another user has this token",
            ),
            (
                &format!("ada {HUNTER2} emit,view"),
                "its last line has no line feed",
            ),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(why), "{error}");
        }
    }
}
