//! The parts that all pages share.
//!
//! - `format`: texts of times, durations and numbers, and links to objects
//! - `chart`: line charts as SVG
//! - `acts`: the forms of actions

pub(super) mod acts;
pub(super) mod chart;
pub(super) mod format;

use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use maud::{DOCTYPE, Markup, html};
use seriatim::control::Cursor;

use self::acts::Forms;
use self::format::link;
use super::{Dashboard, assets};
use crate::listen::problem::Problem;
use crate::listen::users::{Right, User};

/// The pages in the navigation: path, name, and the key that leads to the page after `g`.
pub(super) const PAGES: [(&str, &str, &str); 11] = [
    ("/", "Overview", "o"),
    ("/held", "Held", "h"),
    ("/paused", "Paused", "p"),
    ("/dead", "Dead", "d"),
    ("/workers", "Workers", "w"),
    ("/rules", "Rules", "r"),
    ("/schedules", "Schedules", "s"),
    ("/cron", "Cron", "c"),
    ("/log", "Log", "l"),
    ("/actions", "Actions", "a"),
    ("/check", "Check", "k"),
];

/// The way in which the script keeps a page up to date.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Update<'a> {
    /// The page stays as it is.
    No,
    /// The script asks for the page again after this time, in seconds.
    Every(u32),
    /// The server sends new contents of the page's parts.
    Stream(&'a str),
}

/// The frame of a page.
pub(super) struct Frame<'a> {
    pub(super) app: &'a Dashboard,
    pub(super) user: &'a User,
    /// The path of the page in the navigation.
    pub(super) current: &'static str,
    pub(super) title: &'a str,
    pub(super) update: Update<'a>,
    /// The values for the forms of actions, if the page has such forms.
    pub(super) forms: Option<&'a Forms>,
}

impl Frame<'_> {
    /// Returns the page with this content. The content has the heading of level 1.
    pub(super) fn around(&self, content: &Markup) -> Response {
        self.with_status(self.forms.map_or(StatusCode::OK, Forms::status), content)
    }

    fn with_status(&self, status: StatusCode, content: &Markup) -> Response {
        let Self {
            app,
            user,
            current,
            title,
            update,
            forms,
        } = self;
        let base = &app.base;
        // The answer to a form has the path of the form, which no GET has.
        let update = if forms.is_some_and(Forms::is_refused) {
            &Update::No
        } else {
            update
        };
        let once = forms.filter(|_| *update != Update::No).map(Forms::once);
        let (stream, every) = match update {
            Update::No => (None, None),
            Update::Every(seconds) => (None, Some(*seconds)),
            Update::Stream(path) => (Some(format!("{base}{path}")), None),
        };
        let body = html! {
            (DOCTYPE)
            html lang="en" {
                (head(base, title))
                body data-stream=[stream] data-every=[every] data-once=[once] {
                    a.skip href="#content" { "Skip to content" }
                    header {
                        p.brand { a href=(link(base, "/", &[])) { "seriatim" } }
                        p.where {
                            @if let Some(namespace) = &app.namespace { "namespace " b { (namespace) } ", " }
                            "Redis " b { (app.redis) }
                        }
                        form.search role="search" action={ (base) "/object" } {
                            label.hidden for="search" { "Object" }
                            input #search name="name" type="search" placeholder="Object, e.g. work:1" required maxlength="2048";
                            button type="submit" { "Open" }
                        }
                        div.who {
                            p { b { (user.name) } " (" (rights(user)) ")" }
                            form method="post" action={ (base) "/logout" } { button.plain type="submit" { "Log out" } }
                        }
                    }
                    nav aria-label="Pages" {
                        ul {
                            @for (path, name, key) in PAGES {
                                li { a href=(link(base, path, &[])) aria-current=[(path == *current).then_some("page")] data-key=(key) { (name) } }
                            }
                        }
                        // Without the script, a page that loaded itself again would delete the reason that
                        // someone is typing. So the user asks for new figures.
                        @if *update != Update::No { noscript { a href="" { "Load again" } } }
                        span #stale.bad role="status" {}
                        button #updates.plain type="button" hidden[true] aria-pressed="false" { "Stop updates" }
                    }
                    main #content tabindex="-1" {
                        @if let Some(error) = forms.and_then(Forms::error_elsewhere) { p.problem role="alert" { (error) } }
                        (content)
                    }
                    footer {
                        p { "Times are UTC. Keys: " kbd { "/" } " search, " kbd { "g" } " and a letter a page, " kbd { "j" } " " kbd { "k" } " rows, " kbd { "?" } " help." }
                    }
                    (help())
                }
            }
        };
        answer(status, body.into_string())
    }
}

fn rights(user: &User) -> &'static str {
    let has = |right| user.may_some(right).is_ok();
    match (has(Right::Operate), has(Right::Pause), has(Right::View)) {
        (true, true, _) => "view, pause, operate",
        (true, false, _) => "view, operate",
        (false, true, _) => "view, pause",
        (false, false, true) => "view",
        (false, false, false) => "no right to view",
    }
}

fn head(base: &str, title: &str) -> Markup {
    html! {
        head {
            meta charset="utf-8";
            meta name="viewport" content="width=device-width, initial-scale=1";
            meta name="color-scheme" content="light dark";
            title { (title) " · seriatim" }
            link rel="icon" href=(assets::path(base, "icon.svg")) type="image/svg+xml";
            link rel="stylesheet" href=(assets::path(base, "style.css"));
            script src=(assets::path(base, "script.js")) defer {}
        }
    }
}

fn help() -> Markup {
    html! {
        dialog #help aria-labelledby="help-title" {
            h2 #help-title { "Keys" }
            dl.pairs {
                dt { kbd { "/" } } dd { "search for an object" }
                dt { kbd { "j" } " " kbd { "k" } } dd { "next row, row before" }
                dt { kbd { "Enter" } } dd { "open the object of the row" }
                dt { kbd { "x" } } dd { "select the row" }
                dt { kbd { "u" } } dd { "stop or continue updates" }
                @for (_, name, key) in PAGES { dt { kbd { "g" } " " kbd { (key) } } dd { (name) } }
            }
            form method="dialog" { button type="submit" { "Close" } }
        }
    }
}

/// Returns a page without navigation, for users who are not logged in.
pub(super) fn bare_page(base: &str, title: &str, status: StatusCode, content: &Markup) -> Response {
    let body = html! {
        (DOCTYPE)
        html lang="en" {
            (head(base, title))
            body.bare {
                a.skip href="#content" { "Skip to content" }
                header { p.brand { "seriatim" } }
                main #content tabindex="-1" { (content) }
            }
        }
    };
    answer(status, body.into_string())
}

/// Returns a page that makes the browser ask for the same page again. The browser then sends its
/// cookies, because a page of this server asks.
pub(super) fn again(base: &str) -> Response {
    let body = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                title { "seriatim" }
                meta http-equiv="refresh" content="0";
                link rel="icon" href=(assets::path(base, "icon.svg")) type="image/svg+xml";
                link rel="stylesheet" href=(assets::path(base, "style.css"));
            }
            body.bare { main { h1 { "seriatim" } p { a href="" { "Go on" } } } }
        }
    };
    answer(StatusCode::OK, body.into_string())
}

/// Returns the page for an error. It has the navigation if the user is known.
pub(super) fn problem(app: &Dashboard, user: Option<&User>, problem: &Problem) -> Response {
    let base = &app.base;
    let content = html! {
        h1 { (problem.title()) }
        p.problem role="alert" { (problem.detail()) }
        p { a href=(link(base, "/", &[])) { "Overview" } }
    };
    let mut response = match user {
        Some(user) => Frame {
            app,
            user,
            current: "",
            title: problem.title(),
            update: Update::No,
            forms: None,
        }
        .with_status(problem.status(), &content),
        None => bare_page(base, problem.title(), problem.status(), &content),
    };
    response
        .headers_mut()
        .extend(problem.headers().map(|(name, value)| (Some(name), value)));
    response
}

fn answer(status: StatusCode, body: String) -> Response {
    let mut response = (status, body).into_response();
    response.headers_mut().insert(
        CONTENT_TYPE,
        HeaderValue::from_static("text/html; charset=utf-8"),
    );
    response
}

/// Returns a table that can be scrolled by itself if it is too wide.
pub(super) fn table(caption: &str, heads: &[&str], rows: &Markup) -> Markup {
    scrolled(caption, heads, &html! { tbody { (rows) } })
}

/// Returns an empty table. New rows come at its top, from the messages with the part of this name. It
/// keeps at most `rows_max` rows.
pub(super) fn growing_table(caption: &str, heads: &[&str], part: &str, rows_max: usize) -> Markup {
    scrolled(
        caption,
        heads,
        &html! { tbody data-part=(part) data-rows=(rows_max) {} },
    )
}

fn scrolled(caption: &str, heads: &[&str], body: &Markup) -> Markup {
    html! {
        div.scroll role="region" aria-label=(caption) tabindex="0" {
            table {
                caption { (caption) }
                thead { tr { @for head in heads { th scope="col" { (head) } } } }
                (body)
            }
        }
    }
}

/// Returns why a page has few rows, if large rows have ended it.
pub(super) fn cut_note(is_cut: bool) -> Markup {
    html! { @if is_cut { p { "The page ends here because its rows have 1 MiB in Redis. The next page has more." } } }
}

/// Returns the link to the next page, if there is one.
pub(super) fn next_page(
    base: &str,
    path: &str,
    query: &[(&str, &str)],
    next: Option<&Cursor>,
) -> Markup {
    html! {
        @if let Some(next) = next {
            @let query: Vec<_> = query.iter().copied().chain([("after", next.as_str())]).collect();
            p.next { a href=(link(base, path, &query)) rel="next" { "Next page" } }
        }
    }
}
