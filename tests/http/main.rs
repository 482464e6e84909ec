//! HTTP: the sinks, against a real server in good and bad weather, `seriatim serve`, and the access to
//! `seriatim dashboard`.

#[path = "../support/certificates.rs"]
#[allow(dead_code)]
mod certificates;
#[path = "../support/mod.rs"]
mod support;

mod answers;
mod bulk;
mod causes;
mod connections;
mod cursors;
mod dashboard;
mod documents;
mod doors;
mod early;
mod effects;
mod entrances;
mod event_url;
mod exclusive;
mod in_hand;
mod parameters;
mod receiver;
mod receiver_sql;
mod requests;
mod scores;
mod secured;
mod serve;
mod serve_guard;
mod serving;
mod shares;
mod streams;
mod task;
mod traces;
mod walks;
mod weather;
