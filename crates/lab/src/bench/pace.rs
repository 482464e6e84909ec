//! Gives the times for the emits of the latency phase. Each event is due at a fixed time, even if
//! earlier events are late. So a latency that is measured from the due time includes every wait.

use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedSender;

/// Time before a due time at which the thread stops sleeping and spins. A sleeping thread would
/// wake some tens of microseconds late.
const AWAKE: Duration = Duration::from_micros(150);

/// The times at which events are due.
#[derive(Debug, Clone, Copy)]
pub(super) struct Schedule {
    pub(super) begin: Instant,
    pub(super) per_second: u32,
}

impl Schedule {
    pub(super) fn due(&self, event: usize) -> Instant {
        self.begin + Duration::from_secs_f64(event as f64 / f64::from(self.per_second))
    }

    /// Starts a thread that sends each event to the producers in turn when the event is due. It is
    /// a thread, because the timers of the runtime are no finer than a millisecond. The thread
    /// returns how late it sent each event, in seconds. It ends early if a producer has ended.
    pub(super) fn tell(
        self,
        events: usize,
        producers: Vec<UnboundedSender<usize>>,
    ) -> std::thread::JoinHandle<Vec<f64>> {
        std::thread::spawn(move || {
            let mut late = Vec::with_capacity(events);
            for event in 0..events {
                let due = self.due(event);
                if let Some(asleep) = due.checked_duration_since(Instant::now() + AWAKE) {
                    std::thread::sleep(asleep);
                }
                while Instant::now() < due {
                    std::hint::spin_loop();
                }
                late.push(due.elapsed().as_secs_f64());
                if producers
                    .get(event % producers.len().max(1))
                    .is_none_or(|producer| producer.send(event).is_err())
                {
                    break;
                }
            }
            late
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn events_come_in_turn_and_not_before_their_time() {
        let schedule = Schedule {
            begin: Instant::now(),
            per_second: 1000,
        };
        let (senders, mut receivers): (Vec<_>, Vec<_>) = (0..2)
            .map(|_| tokio::sync::mpsc::unbounded_channel())
            .unzip();
        let telling = schedule.tell(10, senders);
        for event in 0..10 {
            assert_eq!(receivers[event % 2].recv().await, Some(event));
            assert!(Instant::now() >= schedule.due(event));
        }
        assert_eq!(telling.join().expect("no panic").len(), 10);
    }
}
