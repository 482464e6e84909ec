//! Pauses and blocks, and shares of groups.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use maud::{Markup, html};
use seriatim::control::rules::Kind;
use seriatim::control::{Rule, Rules, ShareFigures};
use seriatim_console::shares;
use seriatim_console::shown;

use super::ROWS;
use crate::dashboard::Dashboard;
use crate::dashboard::html::acts::{ActForm, Forms, Input};
use crate::dashboard::html::format::{link, moment, number, text, time};
use crate::dashboard::html::{Frame, Update, table};
use crate::listen::asked::Asked;
use crate::listen::problem::Problem;
use crate::listen::users::{Right, User};
use crate::operator::acts::may_rule;

/// The input for the selector of a new rule.
const SELECTOR: Input<'_> = Input::Text {
    name: "selector",
    label: "Objects: a name as the pages show it, a prefix as work:*, or * for all",
    is_required: true,
};

/// `GET /rules`.
pub(in crate::dashboard) async fn show(
    State(app): State<Arc<Dashboard>>,
    asked: Asked,
    forms: Forms,
) -> Result<Response, Problem> {
    let rules = app.looks.rules(&asked.user).await?;
    let counts = app.looks.held_by(&asked.user, &rules).await?;
    let shares = app.looks.shares(&asked.user).await?;
    let may_block = asked.user.may_some(Right::Operate).is_ok();
    let content = html! {
        h1 { "Pauses and blocks" }
        (list(&app, &forms, &asked.user, &rules, &counts))
        @if asked.user.may_some(Right::Pause).is_ok() {
            h2 { "Set a rule" }
            @let typed = forms.typed(|form| form.has("act", "pause") || form.has("act", "block"));
            form.stack method="post" action=(forms.action()) {
                (forms.hidden("/rules"))
                (typed.input(&SELECTOR))
                (typed.input(&Input::END))
                (typed.reason())
                div.buttons {
                    button type="submit" name="act" value="pause" { "Pause" }
                    @if may_block { button type="submit" name="act" value="block" { "Block" } }
                }
            }
        }
        @if !shares.is_empty() {
            h2 { "Shares" }
            (share_list(shares))
        }
    };
    Ok(Frame {
        app: &app,
        user: &asked.user,
        current: "/rules",
        title: "Pauses and blocks",
        update: Update::No,
        forms: Some(&forms),
    }
    .around(&content))
}

fn list(
    app: &Dashboard,
    forms: &Forms,
    user: &User,
    rules: &Rules,
    counts: &[Option<u64>],
) -> Markup {
    if rules.rules.is_empty() {
        return html! { p { "There are none." } };
    }
    let rows = html! {
        @for (rule, holds) in rules.rules.iter().zip(counts) {
            tr {
                td data-label="Rule" { @if rule.kind == Kind::Block { "block" } @else { "pause" } " " b { (text(&rule.selector.escaped(), 200)) } }
                td data-label="State" { @if rule.in_force { "in force" } @else { "being lifted" } }
                td.number data-label="Holds" { @if let Some(holds) = holds { (held(app, rule, *holds)) } @else { "–" } }
                td data-label="Set by" { (text(&rule.actor, 64)) " " (time(rule.set_ms, rules.now_ms)) }
                td data-label="Ends" { @if let Some(end) = rule.end_ms { (time(end, rules.now_ms)) } @else { "when it is lifted" } }
                td data-label="Reason" { (text(&rule.reason, 300)) }
                td data-label="Action" { (lift(forms, user, rule)) }
            }
        }
    };
    table(
        "Pauses and blocks",
        &[
            "Rule", "State", "Holds", "Set by", "Ends", "Reason", "Action",
        ],
        &rows,
    )
}

/// Returns the number of waiting objects that the rule selects, with a link to them.
fn held(app: &Dashboard, rule: &Rule, holds: u64) -> Markup {
    let target = match rule.selector.as_str().strip_suffix('*') {
        Some(prefix) => link(
            &app.base,
            "/paused",
            &[("prefix", &seriatim::escape::name(prefix))],
        ),
        None => link(
            &app.base,
            "/object",
            &[("name", &seriatim::escape::name(rule.selector.as_str()))],
        ),
    };
    html! { a href=(target) { (number(holds)) } }
}

fn lift(forms: &Forms, user: &User, rule: &Rule) -> Markup {
    if !rule.in_force || may_rule(user, rule.kind, &rule.selector).is_err() {
        return html! { "–" };
    }
    let (act, label) = if rule.kind == Kind::Block {
        ("unblock", "Unblock")
    } else {
        ("resume", "Resume")
    };
    let selector = &*rule.selector.escaped();
    ActForm {
        forms,
        act,
        label,
        subject: selector,
        fields: &[("selector", selector)],
        inputs: &[],
        back: "/rules",
    }
    .markup()
}

/// Returns the shares for which most names wait.
fn share_list(mut shares: Vec<ShareFigures>) -> Markup {
    shares.sort_by_key(|figures| std::cmp::Reverse(figures.waiting));
    let figure = |figure: Option<u64>| figure.map_or_else(|| "–".to_owned(), number);
    let rows = html! {
        @for figures in shares.iter().take(ROWS) {
            tr {
                td data-label="Share" { b { (text(&seriatim::escape::name(&figures.share.selector), 200)) } }
                td data-label="Parts" { (shares::parts(&figures.share)) }
                td.number data-label="Waiting" { (figure(figures.waiting)) @if let Some(ms) = figures.oldest_ms { ", the oldest for " (shown::duration(ms)) } }
                td.number data-label="In hand" { (figure(figures.in_hand)) }
                td.number data-label="Events per second" { @if let Some(events) = figures.taken_per_second { (format!("{events:.1}")) } @else { "–" } }
                td data-label="Set by" { (text(&figures.share.actor, 64)) " " (moment(figures.share.set_ms)) }
                td data-label="Reason" { (text(&figures.share.reason, 300)) }
            }
        }
    };
    html! {
        (table("Shares", &["Share", "Parts", "Waiting", "In hand", "Events per second", "Set by", "Reason"], &rows))
        @if shares.len() > ROWS { p { "There are " (number(shares.len() as u64)) " shares. These are those for which most names wait." } }
    }
}
