//! The files that the pages load: a stylesheet, a script and an icon. They are parts of the program.

use axum::extract::Request;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};

use crate::listen::problem::Problem;
use crate::listen::users::hash;

const FILES: [(&str, &str, &str); 3] = [
    (
        "/style.css",
        "text/css; charset=utf-8",
        include_str!("assets/style.css"),
    ),
    (
        "/script.js",
        "text/javascript; charset=utf-8",
        include_str!("assets/script.js"),
    ),
    (
        "/icon.svg",
        "image/svg+xml",
        include_str!("assets/icon.svg"),
    ),
];

/// Returns whether this is the path of such a file.
pub(super) fn is_one(path: &str) -> bool {
    FILES.iter().any(|(name, ..)| *name == path)
}

/// Returns the paths of all files.
pub(super) fn paths() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(name, ..)| *name)
}

/// Returns the path for pages. It has a part of the hash of the file, so that a browser does not use
/// the file of an older version.
pub(super) fn path(base: &str, name: &str) -> String {
    let contents = FILES
        .iter()
        .find(|(path, ..)| path[1..] == *name)
        .map_or("", |(.., contents)| contents);
    format!("{base}/{name}?v={}", version(contents))
}

fn version(contents: &str) -> String {
    hash(contents)
        .iter()
        .take(6)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// `GET /style.css` and the others.
pub(super) async fn file(request: Request) -> Result<Response, Problem> {
    let found = FILES
        .iter()
        .find(|(path, ..)| *path == request.uri().path());
    let (_, kind, contents) = found.ok_or_else(|| Problem::not_found("there is no such file"))?;
    let tag = format!("\"{}\"", version(contents));
    let is_known = request
        .headers()
        .get(IF_NONE_MATCH)
        .is_some_and(|known| known.as_bytes() == tag.as_bytes());
    let mut response = if is_known {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        (*contents).into_response()
    };
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("max-age=3600"));
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        headers.insert(ETAG, tag);
    }
    Ok(response)
}
