//! The sessions of a node whose pods ask resolvers and open short connections for ten minutes, at a hundredth of
//! the rates and of the table's size of a busy node.

use std::collections::BTreeMap;

use dataplane::Parts;
use dataplane::session::{Evicted, Sessions, Timeouts};

use crate::nodes::load::{Flood, Load};
use crate::nodes::rig::Rig;

const PODS: u16 = 100;
/// The port of the server, after those of all clients.
const SERVER: u16 = PODS;
/// Ticks of a second here.
const TICKS: u64 = Load::TICKS / 100;

fn rig(sessions: u32) -> Rig {
    let sessions = Sessions::new(sessions, PODS + 1, Timeouts::default());
    sessions.set_ports(usize::from(PODS) + 1, true);
    let ports = Load::ports(PODS);
    Rig::with_sessions(Parts { generation: 1, ports, ..Parts::default() }, sessions)
}

/// Plays the load for so many seconds; gives what was evicted, and the most sessions that were held.
fn play(load: &mut Load, sessions: u32, seconds: u64) -> (Evicted, u32) {
    let mut rig = rig(sessions);
    let mut most = 0;
    // The last second is for what is still on its way.
    for tick in 0..(seconds + 1) * TICKS {
        rig.now_s = tick / TICKS;
        if tick < seconds * TICKS {
            load.begin(tick);
        }
        let mut frames = BTreeMap::<u16, Vec<Vec<u8>>>::new();
        for due in std::mem::take(&mut load.due) {
            frames.entry(due.from.unwrap_or(SERVER)).or_default().push(load.frame(&due));
        }
        for (port, frames) in frames {
            rig.send_all(port, frames);
        }
        for port in 0..=SERVER {
            while let Some(frame) = rig.receive(port) {
                load.arrived(&frame);
            }
        }
        most = most.max(rig.sessions().used());
    }
    (rig.sessions().evicted(), most)
}

#[test]
fn questions_and_short_connections_go_on_for_ten_minutes() {
    // The default's hundredth, and a table so small that what is over has to make room.
    for (flood, sessions, seconds) in [
        (Flood::Questions, 10_485, 600),
        (Flood::Questions, 640, 60),
        (Flood::Connections, 10_485, 600),
        (Flood::Connections, 640, 60),
    ] {
        let mut load = Load::new(flood, PODS);
        let (evicted, most) = play(&mut load, sessions, seconds);
        let case = format!("{flood:?}, {sessions} sessions: {most} held, {evicted:?}");
        println!("{case}: {:?} {:?}", load.one, load.others);
        assert!(load.one.asked >= 5 * TICKS * seconds && load.others[1].asked > 1_000, "{case}");
        assert_eq!(
            [load.one, load.others[0], load.others[1]].map(|it| it.lost()),
            [0; 3],
            "{case}"
        );
        assert_eq!((evicted.unanswered, evicted.established), (0, 0), "{case}");
        assert_eq!(evicted.closed + evicted.idle > 0, sessions < 1_000, "{case}");
    }
}
