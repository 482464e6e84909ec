//! The options for the actor and the reason of an operator's action.

use seriatim::control::By;

/// The option of commands that change something as an operator.
#[derive(Debug, clap::Args)]
pub struct Actor {
    /// The name of the actor, which is recorded with the action [default: the user and the host]
    #[arg(long, value_name = "NAME")]
    actor: Option<String>,
}

impl Actor {
    pub fn who(&self) -> String {
        self.actor.clone().unwrap_or_else(user_at_host)
    }
}

/// The options of commands that record an actor and a reason with the action.
#[derive(Debug, clap::Args)]
pub struct ActorWithReason {
    #[command(flatten)]
    actor: Actor,
    /// The reason, recorded with the action; `seriatim actions` shows it
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    reason: String,
}

impl ActorWithReason {
    pub fn who(&self) -> String {
        self.actor.who()
    }

    pub fn by<'a>(&'a self, who: &'a str) -> By<'a> {
        By {
            who,
            why: &self.reason,
        }
    }
}

/// Returns `USER@HOST` of this process.
pub fn user_at_host() -> String {
    let named = ["USER", "LOGNAME"]
        .into_iter()
        .filter_map(|name| std::env::var(name).ok())
        .find(|user| !user.is_empty());
    let user = named.unwrap_or_else(|| format!("uid{}", rustix::process::geteuid().as_raw()));
    format!(
        "{user}@{}",
        rustix::system::uname().nodename().to_string_lossy()
    )
}
