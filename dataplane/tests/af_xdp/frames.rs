//! Frames between a port's rings and whoever holds them.

use std::time::Duration;

use dataplane::frame::{Chain, XDP_HEADROOM};

use crate::af_xdp::pair::{End, FRAMES, Pair, words};

fn packet(payload: &[u8]) -> Vec<u8> {
    testkit::packet::udp("10.0.0.1:1000", "10.0.0.2:2000").payload(payload).build()
}

#[test]
fn a_packet_leaves_from_where_it_starts() {
    testkit::requires_root!();
    let pair = Pair::new("start");
    let mut switch = End::open(&pair.switch, "pod0");
    let mut pod = End::open(&pair.pod, "eth0");
    let inner = packet(b"inner");

    pod.send_bytes(&inner);
    let mut frame = switch.wait();
    assert_eq!(switch.memory.bytes(&frame), inner);
    // As an overlay does: an outer header in front, then off again.
    let outer = packet(&[7; 8]);
    assert!(switch.memory.prepend(&mut frame, outer.len()));
    switch.memory.bytes_mut(&mut frame)[..outer.len()].copy_from_slice(&outer);
    switch.send(frame);
    let wrapped = pod.wait_bytes();
    assert_eq!(wrapped, [outer.clone(), inner.clone()].concat());

    pod.send_bytes(&wrapped);
    let mut frame = switch.wait();
    switch.memory.advance(&mut frame, outer.len());
    switch.send(frame);
    assert_eq!(pod.wait_bytes(), inner);

    // The frame that was moved about is as good as any other afterwards.
    for n in 0..2 * FRAMES {
        let bytes = packet(&n.to_be_bytes());
        pod.send_bytes(&bytes);
        let mut frame = switch.wait();
        assert_eq!(switch.memory.bytes(&frame), bytes);
        assert!(frame.start() >= XDP_HEADROOM);
        assert!(switch.memory.prepend(&mut frame, 70));
        switch.send(frame);
        assert_eq!(pod.wait_bytes()[70..], bytes);
    }
}

#[test]
fn every_frame_is_in_one_place() {
    testkit::requires_root!();
    let pair = Pair::new("accounts");
    let mut switch = End::open(&pair.switch, "pod0");
    let mut pod = End::open(&pair.pod, "eth0");
    let all = |end: &mut End| {
        let (frames, free) = end.frames();
        let sum: u32 = frames.places().iter().map(|(_, count)| count).sum();
        (frames, sum as usize + free)
    };
    for _ in 0..100 {
        pod.send_bytes(&packet(b"x"));
    }
    testkit::eventually("all of them in the receive ring", || {
        let (frames, sum) = all(&mut switch);
        assert_eq!(sum, FRAMES as usize);
        (frames.receive == 100).then_some(())
    });
    // The kernel has copied them; all but those of the last call are free again.
    testkit::eventually("all of them are sent", || {
        std::thread::sleep(Duration::from_millis(100));
        let (frames, sum) = all(&mut pod);
        assert_eq!(sum, FRAMES as usize);
        (frames.completion > 0 && frames.transmit + frames.kernel == 0).then_some(())
    });
    let (frames, _) = switch.frames();
    assert_eq!((frames.transmit, frames.completion, frames.kernel), (0, 0, 0), "{frames:?}");
    for _ in 0..100 {
        assert_eq!(switch.wait_bytes(), packet(b"x"));
    }
    assert_eq!(all(&mut switch).1, FRAMES as usize);
}

#[test]
fn packets_longer_than_a_frame_pass_in_several() {
    testkit::requires_root!();
    let pair = Pair::new("long");
    pair.set_mtu(65_000);
    let mut switch = End::open(&pair.switch, "pod0");
    let mut pod = End::open(&pair.pod, "eth0");
    let (one, several) = (3840, 65_014);
    for length in [60, one - 1, one, one + 1, 2 * one, 2 * one + 1, 9014, several] {
        let payload: Vec<u8> = (0..length - 42).map(|n: u32| (n % 251) as u8).collect();
        let inner = packet(&payload);
        pod.send_bytes(&inner);
        let mut frame = switch.wait();
        assert_eq!((frame.len(), frame.is_chain()), (length as usize, length > one));
        assert!(switch.memory.prepend(&mut frame, 50));
        switch.memory.advance(&mut frame, 50);
        switch.send(frame);
        assert_eq!(pod.wait_bytes(), inner);
    }
    // No frame was lost on the way.
    for end in [&mut switch, &mut pod] {
        end.close();
        assert_eq!(end.free.len(), FRAMES as usize);
    }
}

#[test]
fn a_packet_that_no_ring_takes_comes_back_alone() {
    testkit::requires_root!();
    let pair = Pair::new("too-long");
    pair.set_mtu(65_000);
    let mut switch = End::open(&pair.switch, "pod0");
    let mut pod = End::open(&pair.pod, "eth0");
    // One frame more than the kernel sends as a packet.
    let mut first = switch.free.take().expect("free frames");
    assert!(switch.memory.fill(&mut first, &packet(&[1; 100])));
    let mut chain = Chain::new(first);
    for _ in 0..18 {
        let mut next = switch.free.take().expect("free frames");
        assert!(switch.memory.fill(&mut next, &[1; 100]));
        chain.push(&switch.memory, next);
    }
    let next = |switch: &mut End, payload: &[u8]| {
        let mut frame = switch.free.take().expect("free frames");
        assert!(switch.memory.fill(&mut frame, &packet(payload)));
        frame
    };
    let one = next(&mut switch, b"the one before");
    let other = next(&mut switch, b"the one behind");
    let mut left = switch.try_send(vec![one, chain.finish(), other]);
    assert_eq!(left.len(), 1, "what could not be sent, for an outcome");
    assert_eq!(left[0].frames(), 19);
    left.drain(..).for_each(|frame| switch.free.put(frame));
    assert_eq!(pod.wait_bytes(), packet(b"the one before"));
    assert_eq!(pod.wait_bytes(), packet(b"the one behind"));
    switch.close();
    assert_eq!(switch.free.len(), FRAMES as usize);
}

#[test]
fn a_closed_port_gives_every_frame_back() {
    testkit::requires_root!();
    let pair = Pair::new("close");
    let mut switch = End::open(&pair.switch, "pod0");
    let mut pod = End::open(&pair.pod, "eth0");
    for round in 0..3_u32 {
        for n in 0..100_u32 {
            pod.send_bytes(&packet(&(round * 100 + n).to_be_bytes()));
        }
        // Some of them are still in the rx ring when the port closes.
        let frame = switch.wait();
        switch.send(frame);
        assert!(switch.free.len() < FRAMES as usize);
        switch.close();
        assert_eq!(switch.free.len(), FRAMES as usize);
        switch.reopen(&pair.switch, "pod0");
    }
}

#[test]
fn a_port_whose_interface_is_deleted_says_so() {
    testkit::requires_root!();
    let pair = Pair::new("gone");
    let mut switch = End::open(&pair.switch, "pod0");
    pair.switch.exec(words("ip link delete pod0"));
    let rounds = 100_000;
    let gone = (0..rounds).find_map(|_| switch.try_receive().err());
    let gone = gone.expect("the port is gone").to_string();
    assert!(gone.contains("interface pod0 is gone"), "{gone}");
    switch.close();
    assert_eq!(switch.free.len(), FRAMES as usize);
}
