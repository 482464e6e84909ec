//! A private Redis for the commands that start one. It ends with the program, even after SIGKILL.

mod guard;
mod server;

pub(crate) use guard::Guard;
pub(crate) use server::{Listen, Server, last_line};
