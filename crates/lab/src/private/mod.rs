//! A private Redis for the commands that start one. It ends when the program ends, even if the
//! program is killed with SIGKILL.

mod guard;
mod server;

pub(crate) use guard::Guard;
pub(crate) use server::{Listen, Server, last_line};
