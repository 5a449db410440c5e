use std::path::PathBuf;

use super::*;

const START: Instant = Instant::from_nanos(1_000_000_000);

fn topic(name: &str) -> TopicName {
    TopicName::new(name).unwrap()
}

fn channel(name: &str) -> ChannelName {
    ChannelName::new(name).unwrap()
}

fn created(name: &str) -> Notice {
    Notice::TopicCreated(topic(name))
}

fn has(name: &str, channel_name: &str) -> Notice {
    Notice::ChannelCreated(topic(name), channel(channel_name))
}

fn names(shards: usize) -> Names {
    Names::new(StartingNames { names: Metadata::default(), adopted: false }, shards)
}

fn failed() -> Result<(), MetadataError> {
    let (path, source) = (PathBuf::from("/d/nsqd.dat"), io::ErrorKind::StorageFull.into());
    Err(MetadataError::Io { action: "write", path, source })
}

/// Names with their channels; what is paused has a `!`.
fn text(metadata: &Metadata) -> String {
    let mark = |paused| if paused { "!" } else { "" };
    let channel = |channel: &ChannelMetadata| format!(" {}{}", channel.name, mark(channel.paused));
    let topic = |topic: &TopicMetadata| {
        let channels: String = topic.channels.iter().map(channel).collect();
        format!("{}{}{channels}", topic.name, mark(topic.paused))
    };
    metadata.topics.iter().map(topic).collect::<Vec<_>>().join(", ")
}

#[test]
fn the_file_follows_the_notices() {
    let mut names = names(1);
    for notice in [
        created("b"),
        created("a"),
        has("a", "c"),
        has("a", "d"),
        created("e#ephemeral"),
        has("e#ephemeral", "c"),
        has("b", "x#ephemeral"),
        Notice::PauseChanged(topic("b"), None, Pause::Paused),
        Notice::PauseChanged(topic("a"), Some(channel("d")), Pause::Paused),
        Notice::PauseChanged(topic("e#ephemeral"), None, Pause::Paused),
    ] {
        names.on_notice(0, notice);
    }
    assert_eq!(text(&names.metadata()), "a c d!, b!");
    for notice in [
        Notice::ChannelDeleted(topic("a"), channel("c")),
        Notice::ChannelDeleted(topic("b"), channel("x#ephemeral")),
        Notice::PauseChanged(topic("a"), Some(channel("d")), Pause::Flowing),
        Notice::TopicDeleted(topic("b")),
        created("b"),
    ] {
        names.on_notice(0, notice);
    }
    assert_eq!(text(&names.metadata()), "a d, b", "a topic that is created anew is not paused");
}

#[test]
fn what_changes_during_a_write_goes_into_the_next_one_together() {
    let mut names = names(2);
    names.on_notice(0, created("a"));
    assert_eq!(text(&names.next_draft(START).unwrap()), "a", "the first one waits for nothing");
    names.on_notice(0, created("b"));
    names.on_notice(1, created("c"));
    assert!(names.next_draft(START).is_none());
    assert!(names.newly_durable().is_empty());
    // It took 20 ms; so long the next one waits.
    names.on_written(Ok(()), START + Duration::from_millis(20));
    assert_eq!(names.newly_durable(), [(0, 1)]);
    assert!(names.next_draft(START + Duration::from_millis(39)).is_none());
    assert_eq!(names.next_timeout(), Some(START + Duration::from_millis(40)));
    assert_eq!(text(&names.next_draft(START + Duration::from_millis(40)).unwrap()), "a, b, c");
    names.on_written(Ok(()), START + Duration::from_millis(41));
    assert_eq!(names.newly_durable(), [(0, 2), (1, 1)]);
    assert_eq!(names.next_timeout(), None);
}

#[test]
fn notices_that_change_nothing_in_the_file_are_durable_at_once() {
    let left = Metadata {
        topics: vec![TopicMetadata {
            name: topic("a"),
            paused: true,
            channels: vec![ChannelMetadata { name: channel("c"), paused: true }],
        }],
    };
    let mut names = Names::new(StartingNames { names: left, adopted: false }, 1);
    for notice in [created("a"), has("a", "c"), created("x#ephemeral")] {
        names.on_notice(0, notice);
    }
    assert!(names.next_draft(START).is_none());
    assert_eq!(names.newly_durable(), [(0, 3)]);
    assert_eq!(text(&names.metadata()), "a! c!", "what the shard was told keeps its pauses");
    // Behind a name that is being written they are as durable as it is.
    names.on_notice(0, created("b"));
    names.on_notice(0, created("y#ephemeral"));
    assert!(names.next_draft(START).is_some());
    names.on_notice(0, created("z#ephemeral"));
    assert!(names.newly_durable().is_empty());
    names.on_written(Ok(()), START);
    assert_eq!(names.newly_durable(), [(0, 6)]);
}

#[test]
fn a_write_that_fails_is_tried_again_after_a_pause() {
    let mut names = names(1);
    names.on_notice(0, created("a"));
    assert!(names.next_draft(START).is_some());
    names.on_written(failed(), START);
    assert!(names.newly_durable().is_empty());
    names.on_notice(0, created("b"));
    assert!(names.next_draft(START + Duration::from_millis(999)).is_none());
    assert_eq!(names.next_timeout(), Some(START + RETRY));
    assert_eq!(text(&names.next_draft(START + RETRY).unwrap()), "a, b");
    names.on_written(Ok(()), START + RETRY);
    assert_eq!(names.newly_durable(), [(0, 2)]);
}

#[test]
fn stopping_tries_once_more_without_a_pause_and_says_what_is_not_written() {
    for ends_well in [true, false] {
        let mut names = names(1);
        names.on_notice(0, created("a"));
        assert!(names.next_draft(START).is_some());
        names.stopping = true;
        assert!(names.take_end().is_none(), "a write is under way");
        names.on_written(failed(), START);
        assert!(names.take_end().is_none());
        assert!(names.next_draft(START).is_some());
        names.on_written(if ends_well { Ok(()) } else { failed() }, START);
        assert!(names.next_draft(START + RETRY).is_none());
        assert_eq!(names.take_end().unwrap().is_ok(), ends_well);
    }
}

/// With real threads: the disk stands still, then fails, then works.
#[test]
fn a_disk_that_stands_still_holds_nobody_up() {
    let (arrivals, arrived) = mpsc::channel();
    let (outcomes, next_outcome) = mpsc::channel();
    let (sayings, said) = mpsc::channel();
    let write = move |draft: &Metadata| {
        arrivals.send(text(draft)).unwrap();
        next_outcome.recv().unwrap_or(Ok(()))
    };
    let at_start = StartingNames { names: Metadata::default(), adopted: false };
    let keeper = NamesKeeper::start(at_start, 2, write, move |shard, notices| {
        sayings.send((shard, notices)).unwrap();
    })
    .unwrap();
    let handle = keeper.handle();
    handle.observe(0, created("a"));
    assert_eq!(arrived.recv().unwrap(), "a");
    for number in 0..10_000 {
        handle.observe(1, created(&format!("t{number}")));
    }
    outcomes.send(Ok(())).unwrap();
    assert_eq!(said.recv().unwrap(), (0, 1));
    drop(outcomes);
    keeper.stop().unwrap();
    let told: Vec<_> = said.iter().collect();
    assert_eq!(told.last(), Some(&(1, 10_000)), "{told:?}");
    assert_eq!(arrived.iter().last().unwrap().split(", ").count(), 10_001);
}

#[test]
fn adopted_names_are_written_without_a_notice() {
    let adopted = Metadata { topics: vec![TopicMetadata { name: topic("a"), paused: false, channels: Vec::new() }] };
    let mut names = Names::new(StartingNames { names: adopted, adopted: true }, 1);
    assert_eq!(text(&names.next_draft(START).unwrap()), "a");
}
