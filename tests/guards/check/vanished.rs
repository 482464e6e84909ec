//! Subjects of `check` that disappear before the script looks at them.

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{Cmd, Pipeline, RedisFuture, Value};
use seriatim::control::Control;

use super::broken_by;
use crate::scene::Scene;
use crate::support::{Redis, jobs};

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
    // The test empties its server.
    let scene = Scene::bare(Redis::own(&[])).await;
    let job = jobs::value("1 0", "x:1", "1");
    let commands = format!(
        "
        HSET x:events.scheduled k {{}}; ZADD events.scheduled 1 'x\nk'
        HSET events.cron job '{job}'; ZADD events.cron.next inf job
        SET event.groups.waiting 1; ZADD event.groups 0 g; LPUSH event.group:g:waiting g:1
        "
    );
    for kind in ["name", "worker", "object", "group", "schedule", "cron"] {
        broken_by(&scene, &commands).await;
        let conn = scene.conn().await;
        let control = Control::new(Emptying { conn, kind }).with_keys(scene.keys.clone());
        let report = control.check().await.expect("a report");
        assert!(report.is_clean(), "{kind}: {report:#?}");
        assert_eq!(report.looked_at.suspicions, 0, "{kind}: {report:#?}");
        let left: u64 = scene.run(&["DBSIZE"]).await;
        assert_eq!(left, 0, "{kind}: Redis was emptied");
    }
}
