//! Sets shares, and removes each after a while. They overlap each other and all other faults.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use seriatim::control::rules::Selector;
use seriatim::control::shares::{Priority, Share};
use seriatim::control::{By, Control};

use crate::producers::prefix;
use crate::random::{Draw as _, Random};
use crate::server::Server;

const BY: By<'_> = By {
    who: "torture",
    why: "",
};
/// Bound of the object numbers in shares, as for rules.
const OBJECTS: u64 = 20;

/// The selector and the parts of a share.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ShareSet {
    /// The number of an object, whose prefix the share is for; `None` for all objects.
    number: Option<u64>,
    share: Share,
}

impl ShareSet {
    pub(crate) fn of(random: &mut Random) -> Self {
        let number = (!random.chance(20)).then(|| random.below(OBJECTS));
        let mut share = Share::new();
        if number.is_some() && random.chance(50) {
            share = share.weight(1 + random.below(100));
        }
        if number.is_some() && random.chance(50) {
            let priorities = [Priority::High, Priority::Normal, Priority::Low];
            share = share.priority(priorities[random.below(3) as usize]);
        }
        if random.chance(50) {
            share = share.rate(1.0 + random.below(200) as f64);
        }
        // A share has at least one part.
        Self {
            number,
            share: share.in_flight(1 + random.below(8)),
        }
    }

    fn selector(self) -> anyhow::Result<Selector> {
        Ok(self
            .number
            .map_or_else(|| "*".to_owned(), |number| format!("{}*", prefix(number)))
            .parse()?)
    }
}

/// Sets the share, waits for `time`, and removes the share. Another fault may have replaced or
/// removed it in the meantime. Returns whether the share could be set: Redis may be down.
pub(crate) async fn hold(server: &Server, share: ShareSet, time: Duration) -> bool {
    let Ok(selector) = share.selector() else {
        return false;
    };
    let set = match server.connect(Duration::from_secs(6)).await {
        Ok(conn) => Control::new(conn)
            .set_share(BY, &selector, share.share)
            .await
            .is_ok(),
        Err(_) => false,
    };
    tokio::time::sleep(time).await;
    if let Ok(conn) = server.connect(Duration::from_secs(6)).await {
        // If this call fails, or Redis loses its write, the share stays until the end of the run.
        let _ = Control::new(conn).remove_share(BY, &selector).await;
    }
    set
}

/// Removes all shares. Returns the number of shares that Redis had.
pub(crate) async fn remove_all(conn: &MultiplexedConnection) -> anyhow::Result<u64> {
    let control = Control::new(conn.clone());
    let shares = control.shares().await?;
    for share in &shares {
        control
            .remove_share(BY, &Selector::existing(&share.selector)?)
            .await?;
    }
    Ok(shares.len() as u64)
}
