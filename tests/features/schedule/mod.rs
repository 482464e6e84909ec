//! Schedules: events that are pushed to their queue when they are due.

mod emit;
mod keyed;
mod operator;
mod promote;
