//! Drives the pages of the dashboard in a real, headless Chromium.
//!
//! Needs `chromium`, `chromedriver` and axe-core; `scripts/test-browser` installs them and runs
//! this program.

#[path = "../support/mod.rs"]
mod support;

mod acts;
mod axe;
mod dashboard;
mod driver;
mod element;
mod faults;
mod filled;
mod harness;
mod keys;
mod live;
mod pages;
mod person;
mod picture;
mod requests;
mod session;
mod site;
