//! Users of Redis with some rights only. Their password is `PASSWORD`, as in docs/protocol.md.

use redis::aio::MultiplexedConnection;
use seriatim::control::Control;

use super::{Redis, control};

/// Returns the rules of a user in docs/protocol.md, "Permissions".
fn documented(user: &str, prefix: &str) -> String {
    let begin = format!("    ACL SETUSER {user} ");
    let lines = include_str!("../../docs/protocol.md").lines();
    let rules = lines.filter_map(|line| line.strip_prefix(&begin)).next();
    rules.expect("its rights").replace("{shop:0}:", prefix)
}

impl Redis {
    /// Sets the rules of a user, as `ACL SETUSER` does.
    pub async fn set_user(&self, user: &str, rules: &str) {
        let set = redis::cmd("ACL").arg(&["SETUSER", user]).to_owned();
        let set = rules.split(' ').fold(set, |mut set, rule| {
            set.arg(rule);
            set
        });
        let done = set.exec_async(&mut self.connect().await).await;
        done.expect("a user");
    }

    /// Gives a user the rights that docs/protocol.md lists for `role`.
    pub async fn set_documented_user(&self, user: &str, role: &str) {
        self.set_user(user, &documented(role, self.keys().prefix()))
            .await;
    }

    /// Returns a connection of this user.
    pub async fn connect_as(&self, user: &str) -> MultiplexedConnection {
        let mut conn = self.connect().await;
        let login = redis::cmd("AUTH").arg(&[user, "PASSWORD"]).to_owned();
        login.exec_async(&mut conn).await.expect("logged in");
        conn
    }

    /// Returns the handle of an operator with the rights that docs/protocol.md lists.
    pub async fn documented_control(&self) -> Control {
        self.set_documented_user("operator", "operator").await;
        control(&self.connect_as("operator").await, self.keys())
    }

    /// Returns a connection that may run every command but this one.
    pub async fn connect_without(&self, command: &str) -> MultiplexedConnection {
        let rules = format!("reset on >PASSWORD ~* +@all -{command}");
        self.set_user("weak", &rules).await;
        self.connect_as("weak").await
    }

    /// Returns the handle of an operator who may run every command but this one.
    pub async fn control_without(&self, command: &str) -> Control {
        control(&self.connect_without(command).await, self.keys())
    }
}
