//! A request that has passed the checks: its user, its headers and its parameters.

use axum::extract::{FromRequestParts, MatchedPath};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use percent_encoding::percent_decode_str;
use url::form_urlencoded;

use super::parameters;
use super::problem::Problem;
use super::users::User;

/// A request without its body: its user, its headers and its target.
pub(crate) struct Asked {
    pub(crate) user: User,
    pub(crate) headers: HeaderMap,
    uri: Uri,
    /// The parameters that the route takes.
    known: &'static [&'static str],
}

impl<S: Send + Sync> FromRequestParts<S> for Asked {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        // The guard has put the user into the extensions of the request.
        let user = parts.extensions.remove::<User>();
        let user = user.ok_or_else(|| {
            Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", "no user").with_login()
        })?;
        let path = parts
            .extensions
            .get::<MatchedPath>()
            .map_or(parts.uri.path(), MatchedPath::as_str);
        let known = parameters::of(&parts.method, path);
        parameters::check(known, &parts.uri)?;
        Ok(Self {
            user,
            headers: parts.headers.clone(),
            uri: parts.uri.clone(),
            known,
        })
    }
}

impl Asked {
    /// Returns a request of the same user for a page.
    pub(crate) fn at(&self, uri: Uri) -> Self {
        let known = parameters::of(&Method::GET, uri.path());
        Self {
            user: self.user.clone(),
            headers: self.headers.clone(),
            uri,
            known,
        }
    }

    /// Returns the bytes of the object's name. It is in the path `/v1/objects/NAME`, or else in the
    /// parameter `object` of the query.
    pub(crate) fn object(&self) -> Result<Vec<u8>, Problem> {
        let found = match self.segment(3) {
            Some(name) if self.segment(2) == Some("objects") => {
                Some(percent_decode_str(name).collect())
            }
            _ => {
                // This line only checks that the parameter is not there twice.
                self.query("object")?;
                self.query_bytes("object")
            }
        };
        found
            .filter(|name: &Vec<u8>| !name.is_empty())
            .ok_or_else(|| Problem::bad_request("the request names no object: add ?object=NAME"))
    }

    /// Returns a part of the path, not decoded. In `/v1/objects`, part 1 is `v1`.
    pub(crate) fn segment(&self, at: usize) -> Option<&str> {
        self.uri.path().split('/').nth(at)
    }

    /// Returns the decoded part of the path that follows the last slash.
    pub(crate) fn last_segment(&self) -> Result<String, Problem> {
        let last = self.uri.path().rsplit('/').next().unwrap_or_default();
        let text = percent_decode_str(last).decode_utf8();
        text.map(std::borrow::Cow::into_owned)
            .map_err(|_| Problem::bad_request("the end of the path is not UTF-8"))
    }

    /// Returns a parameter of the query, if it is there. If it is there twice, returns an error.
    pub(crate) fn query(&self, name: &str) -> Result<Option<String>, Problem> {
        if !self.known.contains(&name) {
            return Err(parameters::undeclared(name));
        }
        let query = self.uri.query().unwrap_or_default().as_bytes();
        let mut found = form_urlencoded::parse(query)
            .filter(|(key, _)| key == name)
            .map(|(_, value)| value.into_owned());
        match (found.next(), found.next()) {
            (_, Some(_)) => Err(Problem::bad_request(format!(
                "the parameter {name} is there twice"
            ))),
            (found, None) => Ok(found),
        }
    }

    /// Returns the bytes of a parameter, which need not be UTF-8.
    fn query_bytes(&self, name: &str) -> Option<Vec<u8>> {
        let value = self
            .uri
            .query()?
            .split('&')
            .find_map(|part| part.strip_prefix(name)?.strip_prefix('='))?;
        Some(percent_decode_str(&value.replace('+', " ")).collect())
    }

    /// Returns a parameter as a number or another parsed value.
    pub(crate) fn parsed<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, Problem>
    where
        T::Err: std::fmt::Display,
    {
        let parse = |text: String| {
            text.parse()
                .map_err(|error| Problem::bad_request(format!("the parameter {name}: {error}")))
        };
        self.query(name)?.map(parse).transpose()
    }
}
