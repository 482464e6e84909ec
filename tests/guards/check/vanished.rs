//! Subjects of `check` that disappear before the script looks at them.

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{Cmd, Pipeline, RedisFuture, Value};
use seriatim::control::Control;

use super::broken_by;
use crate::state::State;
use crate::support::Redis;

/// A connection that empties Redis just before the call of the script with a subject of this kind.
#[derive(Clone)]
struct Emptying {
    conn: MultiplexedConnection,
    kind: &'static str,
}

impl ConnectionLike for Emptying {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        let kind = self.kind.as_bytes();
        let empties = cmd
            .args_iter()
            .any(|arg| matches!(arg, redis::Arg::Simple(word) if word == kind));
        Box::pin(async move {
            if empties {
                redis::cmd("FLUSHDB").exec_async(&mut self.conn).await?;
            }
            self.conn.req_packed_command(cmd).await
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipe: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        self.conn.req_packed_commands(pipe, offset, count)
    }

    fn get_db(&self) -> i64 {
        self.conn.get_db()
    }
}

/// Objects, workers, names, groups, schedules and cron jobs disappear between the walk over the
/// keys and the look of the script. A subject without any keys gives no finding.
#[tokio::test]
async fn a_subject_that_has_disappeared_gives_no_finding() {
    let redis = Redis::own(&[]);
    let mut state = State::new(redis.connect().await, redis.keys().clone());
    let keys = state.keys.clone();
    for kind in ["name", "worker", "object", "group", "schedule", "cron"] {
        broken_by(
            &mut state,
            "HSET @x:events.scheduled k {}; HSET @events.cron job {\"id\":\"1\",\"paused\":false,\"since_ms\":5,\"object\":\"x:1\"}\n1",
        )
        .await;
        state
            .run("ZADD", &[&keys.events_scheduled(), "1", "x\nk"])
            .await;
        state
            .run("ZADD", &[&keys.events_cron_next(), "inf", "job"])
            .await;
        state.run("SET", &[&keys.event_groups_waiting(), "1"]).await;
        state.run("ZADD", &[&keys.event_groups(), "0", "g"]).await;
        state.run("LPUSH", &[&keys.group_waiting("g"), "g:1"]).await;
        let conn = Emptying {
            conn: state.conn.clone(),
            kind,
        };
        let report = Control::new(conn)
            .with_keys(keys.clone())
            .check()
            .await
            .expect("a report");
        assert!(
            report.is_clean() && report.looked_at.suspicions == 0,
            "{kind}: {report:#?}"
        );
        assert_eq!(
            redis.console().await.run::<u64>(&["DBSIZE"]).await,
            0,
            "{kind}: Redis was emptied"
        );
    }
}
