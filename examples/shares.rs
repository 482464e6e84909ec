//! Fair shares: one customer has a large backlog, another one pays for a larger share, and a third
//! one must not be called more than twice at the same time.
//!
//!     cargo run --example shares --features worker [-- redis://127.0.0.1:6379]
//!
//! The shares are set before the worker starts. An operator can also set them while workers run:
//! `seriatim share set 'gold:*' --weight 3 --reason "their contract"`. At the end the example prints
//! how many of the first 80 deliveries each customer had, and removes the shares.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::json;
use seriatim::Emitter;
use seriatim::control::shares::Share;
use seriatim::control::{By, Control};
use seriatim::sink::{self, Stop};
use seriatim::worker::{Shutdown, Worker};

const BY: By<'static> = By {
    who: "examples/shares",
    why: "an example",
};
const DELIVERIES: usize = 80;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args()
        .nth(1)
        .or_else(|| std::env::var("SERIATIM_REDIS").ok());
    let url = url.unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    let control = Control::connect(url.as_str()).await?;
    // A prefix with a share is a group, and groups take turns while objects wait.
    control
        .set_share(BY, &"bulk:*".parse()?, Share::new().weight(1))
        .await?;
    control
        .set_share(BY, &"gold:*".parse()?, Share::new().weight(3))
        .await?;
    control
        .set_share(BY, &"slow:*".parse()?, Share::new().in_flight(2))
        .await?;

    // The customer `bulk` comes first, with the largest backlog.
    let emitter = Emitter::connect(url.as_str()).await?;
    for customer in ["bulk", "gold", "slow"] {
        for order in 0..100 {
            emitter
                .emit(&format!("{customer}:{order}"), &json!({"order": order}))
                .await?;
        }
    }

    let shutdown = Shutdown::new();
    let (stop, counts) = (
        shutdown.clone(),
        Arc::new(Mutex::new(BTreeMap::<String, usize>::new())),
    );
    let counted = Arc::clone(&counts);
    let count = sink::each(move |event| {
        let customer = event
            .object
            .as_str()
            .split(':')
            .next()
            .unwrap_or_default()
            .to_owned();
        let mut counts = counted.lock().unwrap_or_else(PoisonError::into_inner);
        let total: usize = counts.values().sum();
        if total < DELIVERIES {
            *counts.entry(customer).or_default() += 1;
        } else {
            stop.stop();
        }
        async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            Ok::<(), Stop>(())
        }
    });
    Worker::builder(url.as_str())
        .name("shares")
        .concurrency(8)
        .sink(count)
        .build()?
        .run(shutdown)
        .await?;

    for (customer, deliveries) in counts.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        println!("{customer}: {deliveries} of the first {DELIVERIES} deliveries");
    }
    for share in control.shares().await? {
        println!(
            "{}: weight {:?}, in hand at most {:?}",
            share.selector, share.weight, share.in_flight
        );
    }
    for selector in ["bulk:*", "gold:*", "slow:*"] {
        control.remove_share(BY, &selector.parse()?).await?;
    }
    Ok(())
}
