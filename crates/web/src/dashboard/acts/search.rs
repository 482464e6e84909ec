//! The search for the worker that has taken an object. It reads the slots of all workers, which may be
//! millions, so it is a job.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use seriatim::control::inspect::Standing;

use super::jobs::{Before, Begun, Job, Kind};
use super::sent::Key;
use super::wanted::{Name, short};
use super::{PATIENCE, to_job};
use crate::dashboard::Dashboard;
use crate::dashboard::form::{Form, own_path};
use crate::dashboard::html::acts::ONCE;
use crate::listen::problem::Problem;
use crate::listen::users::{Right, User};
use tokio::time::timeout;

/// The part of Redis' time that a search takes.
const SHARE: f64 = 0.01;

/// `POST /object/search`: starts a search. It changes nothing, so it needs no reason.
pub(in crate::dashboard) async fn search(
    State(app): State<Arc<Dashboard>>,
    Extension(user): Extension<User>,
    body: Body,
) -> Result<Response, Problem> {
    let form = Form::read(body).await?;
    form.only(&["object", "back", ONCE])?;
    let name = Name::read(&form.needed("object")?)?;
    user.may(Right::View, &name.bytes)?;
    let title = format!("Search all slots for {}", short(&name));
    let (back, key) = (own_path(form.one("back")?), Key::of(&user.name, &form)?);
    let job = match app.jobs.begin(Kind::Search, &user, title, back, key)? {
        Begun::New(job) => job,
        Begun::Before(Before::Job(job)) => return to_job(&app, &job),
        Begun::Before(Before::Gone(used)) => return Err(used.problem()),
    };
    job.tell("no slot is read yet".to_owned());
    let (searching, running) = (app.clone(), job.clone());
    tokio::spawn(async move {
        tokio::select! {
            () = run(&searching, &name, &running) => {}
            () = running.stopped() => {}
        }
        running.end();
    });
    let _ = timeout(PATIENCE, job.ended()).await;
    to_job(&app, &job)
}

async fn run(app: &Dashboard, name: &Name, job: &Job) {
    let progress = |read: &seriatim::control::inspect::Searched| {
        job.tell(format!(
            "{} slots of {} worker names are read",
            read.slots, read.names
        ));
    };
    match app
        .control
        .paced_inspect(&name.bytes, SHARE, progress)
        .await
    {
        Ok(found) => {
            let result = match found.standing {
                _ if !found.taken_by.is_empty() => Ok(format!("a worker has taken it: {}", found.taken_by.join(", "))),
                Standing::Uncovered => {
                    Err("no worker has taken it: I1 is broken. The page of the object says what to do".to_owned())
                }
                _ => Ok("no worker has taken it, and it need not be taken: the page of the object shows its state".to_owned()),
            };
            job.add(&name.shown, result);
        }
        Err(error) => job.fail(super::run::failed(&error)),
    }
}
