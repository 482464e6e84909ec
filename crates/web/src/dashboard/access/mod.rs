//! The users of the dashboard, and the checks of every request. They come before its page, in this
//! order:
//!
//! 1. The host must be known; otherwise the answer is 421.
//! 2. A POST must come from a page of this server, or from a client with a bearer token that is not a
//!    browser; otherwise 403. Its body must be a form; otherwise 415.
//! 3. The header of a trusted proxy, a bearer token, or the cookie of a session must tell the user;
//!    otherwise 401, with the page for the login.
//!
//! The pages then check the rights of the user.
//!
//! - `origin`: the check of the origin
//! - `trust`: the header of a trusted proxy
//! - `sessions`: the sessions of browsers
//! - `login`: the pages for the login and the link, and the logout
//! - `failures`: the limit of failed logins
//! - `secret`: random secrets

mod failures;
pub(super) mod login;
mod origin;
mod secret;
mod sessions;
mod trust;

use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::{Request, State};
use axum::http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, COOKIE, HeaderName, HeaderValue,
    REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use seriatim_console::actor::user_at_host;

use self::failures::Failures;
use self::origin::OwnOrigin;
use self::secret::Hash;
use self::sessions::{Login, Sessions};
pub(super) use self::trust::{Trust, TrustedPeer};
use super::{Dashboard, assets, html};
use crate::listen::connections::Peer;
use crate::listen::fair::Gate;
use crate::listen::hosts::Hosts;
use crate::listen::places::Door;
use crate::listen::probes;
use crate::listen::problem::Problem;
use crate::listen::users::{self, Right, User, Users};

/// The policy for the contents of all pages: only files of this server, nothing inline.
const CONTENTS: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                        form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// The settings of the access.
pub(super) struct Settings {
    pub(super) hosts: Hosts,
    pub(super) users: Option<Arc<Users>>,
    pub(super) trust: Option<Trust>,
    pub(super) public_url: Option<PublicUrl>,
    /// Whether requests come over TLS.
    pub(super) is_secured: bool,
    pub(super) is_read_only: bool,
    /// A word for the name of the cookie. It keeps several dashboards of one host apart, because
    /// browsers send the cookies of all ports of a host.
    pub(super) cookie_word: String,
}

/// The URL under which browsers reach the dashboard through a proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PublicUrl {
    /// The scheme, the host and the port, as in the header `Origin`.
    pub(super) origin: String,
    pub(super) host: String,
    /// The path without a slash at the end; it may be empty.
    pub(super) path: String,
}

impl std::str::FromStr for PublicUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let url =
            url::Url::parse(text).map_err(|error| format!("{error}; write https://HOST/PATH"))?;
        let is_plain = url.query().is_none()
            && url.fragment().is_none()
            && url.username().is_empty()
            && url.password().is_none();
        match url.host_str() {
            Some(host) if is_plain && ["http", "https"].contains(&url.scheme()) => Ok(Self {
                origin: url.origin().ascii_serialization(),
                host: host.to_owned(),
                path: url.path().trim_end_matches('/').to_owned(),
            }),
            _ => Err("write https://HOST/PATH, without a user, a query and a fragment".to_owned()),
        }
    }
}

/// The access to the dashboard.
pub(super) struct Access {
    hosts: Hosts,
    users: Option<Arc<Users>>,
    trust: Option<Trust>,
    /// The hash of the token in the one-time link. `None` if there are users or a trusted proxy.
    link: Option<Mutex<Hash>>,
    own: OwnOrigin,
    sessions: Sessions,
    failures: Failures,
    looks: Gate,
    cookie: String,
    cookie_attributes: String,
    is_read_only: bool,
}

impl Access {
    /// Returns the access, and the token of the one-time link, if there is a link.
    pub(super) fn new(settings: Settings) -> anyhow::Result<(Self, Option<String>)> {
        let has_link = settings.users.is_none() && settings.trust.is_none();
        let (token, hash) = secret::new()?;
        // Without a slash at its end, the path also covers the URL that users type: https://HOST/PATH
        let path = settings
            .public_url
            .as_ref()
            .map(|url| url.path.as_str())
            .filter(|path| !path.is_empty())
            .unwrap_or("/");
        let is_secure = settings.is_secured
            || settings
                .public_url
                .as_ref()
                .is_some_and(|url| url.origin.starts_with("https:"));
        let secure = if is_secure { "; Secure" } else { "" };
        let access = Self {
            hosts: settings.hosts,
            users: settings.users,
            trust: settings.trust,
            link: has_link.then(|| Mutex::new(hash)),
            own: OwnOrigin {
                public: settings.public_url.as_ref().map(|url| url.origin.clone()),
            },
            sessions: Sessions::default(),
            failures: Failures::default(),
            looks: Gate::default(),
            cookie: format!("seriatim_{}", settings.cookie_word),
            cookie_attributes: format!("; Path={path}; HttpOnly; SameSite=Strict{secure}"),
            is_read_only: settings.is_read_only,
        };
        Ok((access, has_link.then_some(token)))
    }

    /// Returns whether browsers log in with a one-time link.
    pub(super) fn has_link(&self) -> bool {
        self.link.is_some()
    }

    /// Returns whether browsers can log in with a token.
    pub(super) fn has_logins(&self) -> bool {
        self.users.is_some() || self.link.is_some()
    }

    /// Uses up the token of the link. Returns the token of the next link; `None` for a wrong token.
    fn use_link(&self, token: &str) -> anyhow::Result<Option<String>> {
        use subtle::ConstantTimeEq as _;
        let Some(link) = &self.link else {
            return Ok(None);
        };
        let (next, next_hash) = secret::new()?;
        let mut present = link.lock().unwrap_or_else(PoisonError::into_inner);
        if !bool::from(present.ct_eq(&users::hash(token))) {
            return Ok(None);
        }
        *present = next_hash;
        Ok(Some(next))
    }

    /// Returns the user of a request.
    pub(super) fn user(&self, peer: Peer, headers: &HeaderMap) -> Option<User> {
        let found = self
            .trust
            .as_ref()
            .and_then(|trust| trust.user(peer, headers))
            .or_else(|| self.users.as_ref()?.of(users::bearer(headers)?))
            .or_else(|| self.of_session(headers))?;
        Some(if self.is_read_only {
            found.only_viewing()
        } else {
            found
        })
    }

    fn of_session(&self, headers: &HeaderMap) -> Option<User> {
        self.of_login(self.sessions.of(&self.session_hash(headers)?)?)
    }

    fn of_login(&self, login: Login) -> Option<User> {
        match login {
            Login::Token(hash) => self.users.as_ref()?.of_hash(&hash),
            Login::Link => Some(User::with_rights(
                &user_at_host(),
                Right::ALL.map(|(_, right)| right).to_vec(),
            )),
        }
    }

    /// Returns the hash of the value of the session's cookie.
    fn session_hash(&self, headers: &HeaderMap) -> Option<Hash> {
        let cookies = headers
            .get_all(COOKIE)
            .iter()
            .filter_map(|value| value.to_str().ok());
        let mut pairs = cookies
            .flat_map(|value| value.split(';'))
            .filter_map(|pair| pair.trim().split_once('='));
        pairs
            .find(|(name, _)| *name == self.cookie)
            .map(|(_, value)| users::hash(value))
    }

    fn cookie(&self, value: &str) -> Option<HeaderValue> {
        HeaderValue::from_str(&format!(
            "{}={value}{}",
            self.cookie, self.cookie_attributes
        ))
        .ok()
    }

    fn expired_cookie(&self) -> Option<HeaderValue> {
        HeaderValue::from_str(&format!(
            "{}=gone{}; Max-Age=0",
            self.cookie, self.cookie_attributes
        ))
        .ok()
    }
}

/// Returns whether the path needs no user.
fn is_open(method: &Method, path: &str) -> bool {
    path == login::LOGIN
        || [Method::GET, Method::HEAD].contains(method)
            && (path == login::LINK || assets::is_one(path))
}

/// Checks a request, and adds the headers of all answers.
pub(super) async fn check(
    State(app): State<Arc<Dashboard>>,
    mut request: Request,
    next: Next,
) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let wants_page = !path.starts_with("/v1/") && accepts_html(request.headers());
    let mut known = None;
    let mut response = if probes::is_one(&method, &path) {
        next.run(request).await
    } else {
        let checked = app.access.checked(&request).and_then(|user| {
            // From now on the connection does not give way to those of strangers.
            if let (Some(user), Some(door)) = (&user, request.extensions().get::<Door>()) {
                door.admit(user)?;
            }
            Ok(user)
        });
        match checked {
            Ok(Some(user)) => {
                known = Some(user.clone());
                let looking = match method {
                    Method::GET | Method::HEAD => Some(app.access.looks.enter(&user).await),
                    _ => None,
                };
                request.extensions_mut().insert(user);
                match looking {
                    Some(Err(problem)) => problem.into_response(),
                    _looking => next.run(request).await,
                }
            }
            Ok(None) if is_open(&method, &path) => next.run(request).await,
            Ok(None) if is_from_elsewhere(request.headers()) && method == Method::GET => {
                html::again(&app.base)
            }
            Ok(None) if wants_page => login::page(&app, &request, StatusCode::UNAUTHORIZED, None),
            Ok(None) => Problem::new(
                StatusCode::UNAUTHORIZED,
                "unauthorized",
                "send the header Authorization: Bearer TOKEN",
            )
            .with_login()
            .into_response(),
            Err(problem) => problem.into_response(),
        }
    };
    if wants_page && let Some(problem) = response.extensions().get::<Problem>().cloned() {
        response = html::problem(&app, known.as_ref(), &problem);
    }
    let headers = response.headers_mut();
    let mut set = |name: HeaderName, value: &'static str| {
        headers.insert(name, HeaderValue::from_static(value));
    };
    set(CONTENT_SECURITY_POLICY, CONTENTS);
    set(X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(X_FRAME_OPTIONS, "DENY");
    // With `no-referrer`, browsers send `Origin: null` with forms, also with those of this server.
    set(REFERRER_POLICY, "same-origin");
    set(
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    );
    set(
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    );
    if !headers.contains_key(CACHE_CONTROL) {
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    response
}

/// Returns whether a page of another site has led the browser here. Then the browser leaves the
/// session's cookie out. It sends the cookie if a page of this server asks again.
fn is_from_elsewhere(headers: &HeaderMap) -> bool {
    headers
        .get("sec-fetch-site")
        .is_some_and(|site| site == "cross-site" || site == "same-site")
        && headers
            .get("sec-fetch-mode")
            .is_some_and(|mode| mode == "navigate")
}

pub(super) fn accepts_html(headers: &HeaderMap) -> bool {
    headers
        .get(ACCEPT)
        .and_then(|accept| accept.to_str().ok())
        .is_some_and(|accept| accept.contains("text/html"))
}

impl Access {
    fn checked(&self, request: &Request) -> Result<Option<User>, Problem> {
        let headers = request.headers();
        self.hosts.check(request.uri(), headers)?;
        let method = request.method();
        if *method != Method::GET && *method != Method::HEAD {
            if !self.own.has_sent(headers, users::bearer(headers).is_some()) {
                let detail = "another site has sent this request: nothing was done; use the forms of the dashboard";
                return Err(Problem::new(
                    StatusCode::FORBIDDEN,
                    "foreign-origin",
                    detail,
                ));
            }
            let is_form = headers
                .get(CONTENT_TYPE)
                .and_then(|kind| kind.to_str().ok())
                .is_some_and(|kind| {
                    kind.split(';')
                        .next()
                        .unwrap_or_default()
                        .trim()
                        .eq_ignore_ascii_case("application/x-www-form-urlencoded")
                });
            if *method == Method::POST && !is_form {
                let detail = "send the header Content-Type: application/x-www-form-urlencoded";
                return Err(Problem::new(
                    StatusCode::UNSUPPORTED_MEDIA_TYPE,
                    "content-type",
                    detail,
                ));
            }
        }
        let peer = request
            .extensions()
            .get::<Peer>()
            .copied()
            .unwrap_or(Peer::Unix);
        Ok(self.user(peer, headers))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_public_url_has_an_origin_and_a_path() {
        let url: PublicUrl = "https://ops.example:8443/queue/".parse().expect("a URL");
        assert_eq!(
            (url.origin.as_str(), url.host.as_str(), url.path.as_str()),
            ("https://ops.example:8443", "ops.example", "/queue")
        );
        assert_eq!(
            "http://ops.example"
                .parse::<PublicUrl>()
                .expect("a URL")
                .path,
            ""
        );
        for bad in [
            "",
            "ops.example",
            "ftp://ops.example",
            "https://a:b@ops.example",
            "https://ops.example?x",
            "https://ops.example/#x",
        ] {
            assert!(bad.parse::<PublicUrl>().is_err(), "{bad}");
        }
    }
}
