//! A small site of the test's own: a fixed answer for each path.

use axum::Router;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::response::{Html, IntoResponse as _};
use axum::routing::{get, post};
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;

/// A policy as strict as that of the dashboard.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'";

/// A served site. It ends with the runtime of the test.
pub(crate) struct Site {
    pub(crate) origin: String,
}

impl Site {
    /// Serves these pages under `/NAME`. There are also two styles, `/script.js`, and `/posted`,
    /// which shows the body that was posted to it.
    pub(crate) async fn serve(pages: &[(&'static str, String)]) -> Self {
        let mut routes = Router::new()
            .route(
                "/style.css",
                get(|| async { ([(CONTENT_TYPE, "text/css")], include_str!("site/style.css")) }),
            )
            .route(
                "/faint.css",
                get(|| async { ([(CONTENT_TYPE, "text/css")], include_str!("site/faint.css")) }),
            )
            .route(
                "/script.js",
                get(|| async {
                    (
                        [(CONTENT_TYPE, "text/javascript")],
                        include_str!("site/script.js"),
                    )
                }),
            )
            .route("/favicon.ico", get(|| async { StatusCode::NO_CONTENT }))
            .route(
                "/posted",
                post(|body: String| async move {
                    page("Posted", &format!("<p>posted: {body}</p>")).into_response()
                }),
            );
        for (name, html) in pages {
            let answer = ([(CONTENT_SECURITY_POLICY, POLICY)], Html(html.clone()));
            routes = routes.route(&format!("/{name}"), get(move || async move { answer }));
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let origin = format!("http://{}", listener.local_addr().expect("an address"));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let service = TowerToHyperService::new(routes.clone());
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        Self { origin }
    }

    pub(crate) fn url(&self, name: &str) -> String {
        format!("{}/{name}", self.origin)
    }
}

/// Returns a page without any fault, with this content.
pub(crate) fn page(title: &str, content: &str) -> Html<String> {
    Html(format!(
        r##"<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="stylesheet" href="/style.css"><script src="/script.js" defer></script></head>
<body><a href="#main">Skip to content</a><main id="main" tabindex="-1"><h1>{title}</h1>{content}</main></body></html>"##
    ))
}
