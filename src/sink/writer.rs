//! The writer thread of a sink that writes lines. The thread has the output, and turns the
//! deliveries of many slots into one write.
//!
//! Slots send their batches through a bounded channel. The thread takes all waiting batches, writes
//! them at once, and then replies to all of them (group commit). The channel is first in, first
//! out, and only this thread writes. So lines never interleave. The batches of one object stay in
//! order even if a delivery is dropped and repeated. If the process dies before a reply, the batch
//! does not count as delivered.

use std::io;

use tokio::sync::{mpsc, oneshot};

use super::{Batch, Delivered, Stop};

/// Maximum number of deliveries in the channel. If the channel is full, further deliveries wait to
/// get into it.
const REQUESTS_MAX: usize = 1024;

/// Number of bytes after which a group takes no further batch.
const GROUP_BYTES_MAX: usize = 4 * 1024 * 1024;

const THREAD_ENDED: &str = "the sink's writer thread has ended; restart the worker";

/// The output of a writer thread.
pub(super) trait Output: Send + 'static {
    /// Writes whole lines for good. The error is a text of one line. After an error, none of these
    /// lines counts as written.
    fn write(&mut self, lines: &[u8]) -> Result<(), String>;

    /// Opens the output anew if it was renamed or deleted.
    fn reopen(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The handle of a writer thread. If the handle is dropped, the thread ends after the group that it
/// is writing.
#[derive(Debug)]
pub(super) struct Writer {
    requests: mpsc::Sender<Request>,
}

enum Request {
    Write(Write),
    Reopen(oneshot::Sender<io::Result<()>>),
}

struct Write {
    batch: Batch,
    answer: oneshot::Sender<Result<(), String>>,
}

impl Writer {
    /// Starts the thread.
    pub(super) fn start(output: impl Output) -> io::Result<Self> {
        let (requests, waiting) = mpsc::channel(REQUESTS_MAX);
        std::thread::Builder::new()
            .name("seriatim-sink".to_owned())
            .spawn(move || run(waiting, output))?;
        Ok(Self { requests })
    }

    /// Waits until the batch is written for good, or until the write has failed.
    ///
    /// Cancellation: if the future is dropped before the thread takes the batch, nothing is
    /// written. If it is dropped later, all of the batch is written.
    pub(super) async fn deliver(&self, batch: &Batch) -> Delivered {
        let (answer, answered) = oneshot::channel();
        let request = Request::Write(Write {
            batch: batch.clone(),
            answer,
        });
        let written = match self.requests.send(request).await {
            Ok(()) => answered.await.ok(),
            Err(_) => None,
        };
        match written {
            Some(Ok(())) => Delivered::all(),
            Some(Err(error)) => Delivered::stopped(0, Stop::Unavailable { error }),
            None => Delivered::stopped(0, Stop::unavailable(THREAD_ENDED)),
        }
    }

    /// Opens the output anew. Writes that already wait are done first.
    pub(super) async fn reopen(&self) -> io::Result<()> {
        let (answer, answered) = oneshot::channel();
        let ended = || io::Error::other(THREAD_ENDED);
        self.requests
            .send(Request::Reopen(answer))
            .await
            .map_err(|_| ended())?;
        answered.await.unwrap_or_else(|_| Err(ended()))
    }
}

fn run(mut waiting: mpsc::Receiver<Request>, mut output: impl Output) {
    let mut lines = Vec::new();
    let mut answers = Vec::new();
    while let Some(first) = waiting.blocking_recv() {
        let mut reopen = take(first, &mut lines, &mut answers);
        while lines.len() < GROUP_BYTES_MAX && reopen.is_none() {
            let Ok(next) = waiting.try_recv() else { break };
            reopen = take(next, &mut lines, &mut answers);
        }
        if !answers.is_empty() {
            let written = output.write(&lines);
            for answer in answers.drain(..) {
                // The receiver is gone if the delivery was dropped while its lines were written.
                let _ = answer.send(written.clone());
            }
        }
        lines.clear();
        lines.shrink_to(GROUP_BYTES_MAX);
        if let Some(answer) = reopen {
            let _ = answer.send(output.reopen());
        }
    }
}

/// The channel of a task that waits until the output is opened anew.
type Reopened = Option<oneshot::Sender<io::Result<()>>>;

/// Adds a batch to the group, unless its delivery was dropped. A request to open the output anew
/// ends the group and is returned.
fn take(
    request: Request,
    lines: &mut Vec<u8>,
    answers: &mut Vec<oneshot::Sender<Result<(), String>>>,
) -> Reopened {
    let write = match request {
        Request::Reopen(answer) => return Some(answer),
        Request::Write(write) => write,
    };
    if !write.answer.is_closed() {
        for event in write.batch.events() {
            event.write_envelope(lines);
            lines.push(b'\n');
        }
        answers.push(write.answer);
    }
    None
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::mpsc as channel;
    use std::task::Poll;

    use super::*;
    use crate::event::ObjectName;

    /// An output whose writes wait until the test gives each a result.
    struct Hand {
        seen: channel::Sender<Vec<u8>>,
        answers: channel::Receiver<Result<(), String>>,
    }

    impl Output for Hand {
        fn write(&mut self, lines: &[u8]) -> Result<(), String> {
            self.seen.send(lines.to_vec()).expect("the test listens");
            self.answers.recv().expect("the test answers")
        }
    }

    fn by_hand() -> (
        Writer,
        channel::Receiver<Vec<u8>>,
        channel::Sender<Result<(), String>>,
    ) {
        let (seen, sees) = channel::channel();
        let (answer, answers) = channel::channel();
        (
            Writer::start(Hand { seen, answers }).expect("a thread"),
            sees,
            answer,
        )
    }

    fn batch(id: u64) -> Batch {
        Batch::new(
            ObjectName::new(format!("o:{id}")).expect("a name"),
            id,
            0,
            vec!["1".into()],
        )
    }

    fn line(id: u64) -> String {
        format!("{{\"id\":{id},\"prev\":0,\"object\":\"o:{id}\",\"event\":1}}\n")
    }

    async fn polled_once<F: Future>(future: &mut std::pin::Pin<&mut F>) -> bool {
        std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_ready())).await
    }

    #[tokio::test]
    async fn all_that_wait_are_written_in_one_go_and_answered_alike() {
        let (writer, sees, answer) = by_hand();
        let (first, second, third) = (batch(1), batch(2), batch(3));
        let mut one = pin!(writer.deliver(&first));
        assert!(!polled_once(&mut one).await);
        assert_eq!(sees.recv().expect("a write"), line(1).as_bytes());
        // The thread is busy with the first batch. So these two batches wait, and will make one
        // group.
        let (mut two, mut three) = (pin!(writer.deliver(&second)), pin!(writer.deliver(&third)));
        assert!(!polled_once(&mut two).await && !polled_once(&mut three).await);
        answer.send(Ok(())).expect("the thread waits");
        assert_eq!(one.await, Delivered::all());
        assert_eq!(
            sees.recv().expect("a write"),
            (line(2) + &line(3)).as_bytes()
        );
        assert!(
            !polled_once(&mut two).await,
            "delivered before the output answered"
        );
        answer
            .send(Err("full".to_owned()))
            .expect("the thread waits");
        let failed = Delivered::stopped(0, Stop::unavailable("full"));
        assert_eq!((two.await, three.await), (failed.clone(), failed));
    }

    #[tokio::test]
    async fn a_delivery_dropped_before_its_turn_is_not_written() {
        let (writer, sees, answer) = by_hand();
        let (first, second, third) = (batch(1), batch(2), batch(3));
        let mut one = pin!(writer.deliver(&first));
        assert!(!polled_once(&mut one).await);
        assert_eq!(sees.recv().expect("a write"), line(1).as_bytes());
        {
            let mut dropped = pin!(writer.deliver(&second));
            assert!(!polled_once(&mut dropped).await);
        }
        let mut three = pin!(writer.deliver(&third));
        assert!(!polled_once(&mut three).await);
        answer.send(Ok(())).expect("the thread waits");
        assert_eq!(sees.recv().expect("a write"), line(3).as_bytes());
        answer.send(Ok(())).expect("the thread waits");
        assert_eq!(
            (one.await, three.await),
            (Delivered::all(), Delivered::all())
        );
    }
}
