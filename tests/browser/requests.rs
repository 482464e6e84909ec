//! The requests of pages, from the events of the DevTools.

use std::collections::HashMap;

use serde_json::Value;

use crate::driver::as_text;

/// A request of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) url: String,
    /// `Document`, `Stylesheet`, `Script`, `Image`, `EventSource` or another word of the DevTools.
    pub(crate) kind: String,
    /// The status of the response; `None` if none came.
    pub(crate) status: Option<u64>,
}

/// Requests in the order in which they were sent.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    requests: Vec<Request>,
    /// For each id of the DevTools, the place of its last request, and whether that has no answer.
    last: HashMap<String, (usize, bool)>,
}

impl Requests {
    /// Adds an event of the DevTools. Requests of the browser's own pages do not count: they stay
    /// without an answer if their page is left early.
    pub(crate) fn add(&mut self, event: &Value) {
        let (method, parameters) = (&event["method"], &event["params"]);
        let id = as_text(&parameters["requestId"]);
        match method.as_str() {
            Some("Network.requestWillBeSent") => {
                let (url, kind) = (
                    as_text(&parameters["request"]["url"]),
                    as_text(&parameters["type"]),
                );
                if url.starts_with("chrome:") {
                    return;
                }
                // A redirect goes on under the id of its first request.
                self.answer(&id, &parameters["redirectResponse"]);
                self.last.insert(id, (self.requests.len(), true));
                self.requests.push(Request {
                    url,
                    kind,
                    status: None,
                });
            }
            Some("Network.responseReceived") => self.answer(&id, &parameters["response"]),
            Some("Network.loadingFailed") => self.answer(&id, &Value::Null),
            _ => (),
        }
    }

    fn answer(&mut self, id: &str, response: &Value) {
        if let Some((at, unanswered)) = self.last.get_mut(id) {
            let status = &mut self.requests[*at].status;
            *status = response["status"].as_u64().or(*status);
            *unanswered = false;
        }
    }

    /// Returns whether each request has a response, or failed.
    pub(crate) fn are_answered(&self) -> bool {
        self.last.values().all(|(_, unanswered)| !unanswered)
    }

    /// Returns the requests.
    pub(crate) fn into_vec(self) -> Vec<Request> {
        self.requests
    }
}
