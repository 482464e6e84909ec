//! The page of a form that was refused: the page to which the form leads back, with the form filled in
//! as it was, and the error beside it.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::Response;

use crate::dashboard::Dashboard;
use crate::dashboard::access::accepts_html;
use crate::dashboard::form::{Form, own_path};
use crate::dashboard::html::acts::Forms;
use crate::dashboard::pages;
use crate::listen::asked::Asked;
use crate::listen::problem::Problem;

/// Returns the page of a refused form. `None` if a program has sent it, if the user may not do the
/// action, or if there is no such page. The page reads Redis again.
pub(super) async fn page(
    app: &Arc<Dashboard>,
    asked: &Asked,
    form: Form,
    problem: &Problem,
) -> Option<Response> {
    let can_be_mended =
        [StatusCode::BAD_REQUEST, StatusCode::SERVICE_UNAVAILABLE].contains(&problem.status());
    if !can_be_mended || !accepts_html(&asked.headers) {
        return None;
    }
    let back: Uri = own_path(Some(form.one("back").ok()??)).parse().ok()?;
    let path = back.path().to_owned();
    let (state, asked, forms) = (
        State(app.clone()),
        asked.at(back),
        Forms::refused(&app.base, form, problem),
    );
    let page = match path.as_str() {
        "/object" => pages::object::show(state, asked, forms).await,
        "/held" => pages::held::show(state, asked, forms).await,
        "/dead" => pages::dead::show(state, asked, forms).await,
        "/rules" => pages::rules::show(state, asked, forms).await,
        "/schedules" => pages::schedules::show(state, asked, forms).await,
        "/cron" => pages::cron::show(state, asked, forms).await,
        _ => return None,
    };
    // If the page cannot be shown, the error of the form is more important than that of the page.
    let mut response = page.ok()?;
    response
        .headers_mut()
        .extend(problem.headers().map(|(name, value)| (Some(name), value)));
    Some(response)
}
