//! The roles, each with its dashboard, and what they may do.

use reqwest::RequestBuilder;

use super::super::rig::{Dash, Scene, USERS, path, token, users};
use super::tables::{All, Needs, Nobody, Object, Operate, Probe, Right, SomeObjects, User};

/// The requests of one role: the name, whether it has `view`, `pause` and `operate`, and whether it
/// has them for all objects.
pub(super) struct Role<'a> {
    pub(super) name: &'static str,
    pub(super) dash: &'a Dash,
    pub(super) rights: [bool; 3],
    has_all: bool,
    login: Login,
}

pub(super) enum Login {
    Nobody,
    Token(String),
    Header(&'static str),
}

impl Role<'_> {
    pub(super) fn known(&self, request: RequestBuilder) -> RequestBuilder {
        match &self.login {
            Login::Nobody => request,
            Login::Token(token) => request.bearer_auth(token),
            Login::Header(name) => request.header("x-forwarded-user", *name),
        }
    }

    pub(super) fn is_known(&self) -> bool {
        !matches!(self.login, Login::Nobody)
    }

    /// Returns the status of a page. `of`: the prefix of the object.
    pub(super) fn reads(&self, needs: Needs, of: &str) -> u16 {
        let view = self.rights[0];
        match needs {
            Probe | Nobody => 200,
            _ if !self.is_known() => 401,
            // There is no such job.
            User => 404,
            SomeObjects if view => 200,
            All if view && self.has_all => 200,
            Operate if self.rights[2] && self.has_all => 200,
            Object if view && (self.has_all || of == "work") => 200,
            _ => 403,
        }
    }

    /// Returns whether the role may do an action. `of`: the prefix of the object; empty: all objects.
    pub(super) fn may(&self, right: Right, of: &str) -> bool {
        let has = match right {
            Right::Pause => self.rights[1],
            Right::Operate => self.rights[2],
        };
        has && (self.has_all || of == "work")
    }
}

/// The dashboards of the roles.
pub(super) struct Dashes {
    pub(super) scene: Scene,
    _users: tempfile::NamedTempFile,
    users: Dash,
    read_only: Dash,
    behind_proxy: Dash,
}

impl Dashes {
    pub(super) async fn start() -> Self {
        let (scene, file) = (Scene::start().await, users(&USERS));
        let trusting = [
            "--trust-header",
            "X-Forwarded-User",
            "--trust-from",
            "127.0.0.0/8",
            "--trust-rights",
            "view,pause",
        ];
        Self {
            users: Dash::start(&scene.redis, &["--users", path(&file)]).await,
            read_only: Dash::start(&scene.redis, &["--users", path(&file), "--read-only"]).await,
            behind_proxy: Dash::start(&scene.redis, &trusting).await,
            _users: file,
            scene,
        }
    }

    pub(super) fn roles(&self) -> Vec<Role<'_>> {
        const VIEW: [bool; 3] = [true, false, false];
        const PAUSE: [bool; 3] = [true, true, false];
        let role = |name: &'static str, dash, rights, has_all, login| Role {
            name,
            dash,
            rights,
            has_all,
            login,
        };
        let (user, proxy) = (|name| Login::Token(token(name)), &self.behind_proxy);
        vec![
            role("nobody", &self.users, [false; 3], false, Login::Nobody),
            role("emitter", &self.users, [false; 3], true, user("emitter")),
            role("viewer", &self.users, VIEW, true, user("viewer")),
            role("pauser", &self.users, PAUSE, true, user("pauser")),
            role("bound", &self.users, [true; 3], false, user("bound")),
            role(
                "operator --read-only",
                &self.read_only,
                VIEW,
                true,
                user("operator"),
            ),
            role(
                "nobody of the proxy",
                proxy,
                [false; 3],
                false,
                Login::Nobody,
            ),
            role("ada of the proxy", proxy, PAUSE, true, Login::Header("ada")),
            // The last one, because the actions are done.
            role("operator", &self.users, [true; 3], true, user("operator")),
        ]
    }
}
