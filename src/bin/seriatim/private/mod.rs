//! A Redis of this program's own, for the commands that start one: it ends with the program,
//! however that ends.

mod guard;
mod server;

pub(crate) use guard::Guard;
pub(crate) use server::{Listen, Server, last_line};
