//! Where topics go: the placements that are in force, and who is told of changes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use tidegate_wire::nsq::TopicName;
use tokio::sync::{mpsc, watch};

use crate::machine::hop::NodeId;
use crate::machine::hop::placement::{BadPlacement, PlacedNode, Placement};

/// Topics whose placements are followed: more than the control plane places. One beyond takes the place of one that has no
/// placement; where there is none, it goes to the nodes of the configuration.
pub(super) const TOPICS_MAX: usize = 1_024;
/// Addresses of brokers that a hop has ever heard of; a placement that names more is not followed.
const ADDRESSES_MAX: usize = 4_096;

/// Why a placement is not followed.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BookError {
    /// For itself.
    #[error(transparent)]
    Bad(#[from] BadPlacement),
    /// A newer one is in force.
    #[error("revision {found} is older than {held}, which is in force")]
    Older {
        /// Its revision.
        found: u64,
        /// The one in force.
        held: u64,
    },
    /// Its nodes, and those of all placements before it.
    #[error("the hop knows {ADDRESSES_MAX} addresses of brokers already: restart it")]
    TooManyAddresses,
}

/// A placement with the numbers of its nodes.
#[derive(Debug)]
struct Placed {
    placement: Placement,
    nodes: Vec<NodeId>,
}

impl Placed {
    fn candidates(&self, identity: &str) -> Vec<NodeId> {
        self.placement.rank(identity).into_iter().map(|place| self.nodes[place]).collect()
    }
}

#[derive(Clone, Debug)]
enum State {
    /// Nobody has said yet where it goes.
    Asking,
    /// It has no placement.
    Unplaced,
    Placed(Arc<Placed>),
}

#[derive(Debug)]
struct Entry {
    state: State,
    /// Publishers whose connection knows the topic.
    users: usize,
    version: u64,
}

/// Addresses by number.
#[derive(Debug, Default)]
struct Nodes {
    by_address: BTreeMap<Arc<str>, NodeId>,
    /// Address, and the name that it had last.
    all: Vec<(Arc<str>, Arc<str>)>,
}

#[derive(Debug)]
struct Inner {
    nodes: Nodes,
    topics: BTreeMap<TopicName, Entry>,
    version: u64,
}

/// Who decides where topics go.
#[derive(Debug)]
pub(super) enum Authority {
    /// Nobody.
    Nodes,
    /// A file, which is read as a whole.
    File,
    /// The control plane, which is asked for each topic.
    Control(mpsc::Sender<TopicName>),
}

/// The placements in force. Short locks: no I/O happens in one.
#[derive(Debug)]
pub(super) struct Book {
    inner: Mutex<Inner>,
    /// The nodes of the configuration.
    fallback: Placed,
    authority: Authority,
    changes: watch::Sender<u64>,
}

/// Where one publisher's topic goes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Look {
    /// Another number after each change.
    pub(super) version: u64,
    pub(super) candidates: Vec<NodeId>,
}

/// A topic, for people.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct TopicRow {
    pub(super) topic: String,
    /// `asking`, `nodes` or `placement`.
    pub(super) placed_by: &'static str,
    pub(super) revision: u64,
    pub(super) nodes: Vec<String>,
    pub(super) publishers: usize,
}

impl Nodes {
    fn number(&mut self, node: &PlacedNode) -> Result<NodeId, BookError> {
        if let Some(number) = self.by_address.get(node.nsq.as_str()) {
            if let Some((_, name)) = usize::try_from(number.0).ok().and_then(|place| self.all.get_mut(place))
                && **name != *node.name
            {
                *name = node.name.as_str().into();
            }
            return Ok(*number);
        }
        if self.all.len() >= ADDRESSES_MAX {
            return Err(BookError::TooManyAddresses);
        }
        let number = NodeId(u32::try_from(self.all.len()).map_err(|_| BookError::TooManyAddresses)?);
        let address: Arc<str> = node.nsq.as_str().into();
        self.by_address.insert(Arc::clone(&address), number);
        self.all.push((address, node.name.as_str().into()));
        Ok(number)
    }

    fn entry(&self, node: NodeId) -> Option<&(Arc<str>, Arc<str>)> {
        usize::try_from(node.0).ok().and_then(|place| self.all.get(place))
    }
}

impl Inner {
    fn place(&mut self, placement: Placement) -> Result<Placed, BookError> {
        let nodes = placement.nodes.iter().map(|node| self.nodes.number(node)).collect::<Result<_, _>>()?;
        Ok(Placed { placement, nodes })
    }

    /// Forgets a topic without a placement: it goes where it went. False if there is none.
    fn make_room(&mut self) -> bool {
        let mut topics = self.topics.iter();
        let found = topics.find(|(_, entry)| matches!(entry.state, State::Unplaced)).map(|(topic, _)| topic.clone());
        found.is_some_and(|topic| self.topics.remove(&topic).is_some())
    }

    /// Puts `state` in force for an entry that is there.
    fn change(&mut self, topic: &TopicName, state: State) {
        self.version += 1;
        if let Some(entry) = self.topics.get_mut(topic) {
            entry.state = state;
            entry.version = self.version;
        }
    }
}

impl Book {
    /// A book without placements.
    ///
    /// # Errors
    /// If `nodes` are none, or too many.
    pub(super) fn new(nodes: &[PlacedNode], authority: Authority) -> Result<Self, BookError> {
        let fallback = Placement {
            topic: "unplaced".to_owned(),
            revision: 0,
            nodes: nodes.to_vec(),
            publishers: BTreeMap::new(),
            default: Vec::new(),
        };
        fallback.check()?;
        let mut inner = Inner { nodes: Nodes::default(), topics: BTreeMap::new(), version: 0 };
        let fallback = inner.place(fallback)?;
        Ok(Self { inner: Mutex::new(inner), fallback, authority, changes: watch::Sender::new(0) })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes whenever a placement does.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn tell(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    /// Where a node listens.
    pub(super) fn address(&self, node: NodeId) -> Option<Arc<str>> {
        self.inner().nodes.entry(node).map(|(address, _)| Arc::clone(address))
    }

    /// What people call a node.
    pub(super) fn name(&self, node: NodeId) -> Option<Arc<str>> {
        self.inner().nodes.entry(node).map(|(_, name)| Arc::clone(name))
    }

    /// Brokers for a producer that has not published.
    pub(super) fn home(&self, identity: &str) -> Vec<NodeId> {
        self.fallback.candidates(identity)
    }

    /// A publisher of `topic` is there. False if its placement is not followed, since there are too many.
    pub(super) fn join(&self, topic: &TopicName) -> bool {
        let mut inner = self.inner();
        if let Some(entry) = inner.topics.get_mut(topic) {
            entry.users += 1;
            return true;
        }
        if inner.topics.len() >= TOPICS_MAX && !inner.make_room() {
            return false;
        }
        let state = match &self.authority {
            Authority::Nodes | Authority::File => State::Unplaced,
            // The queue has room for each entry; without the task behind it nobody will answer.
            Authority::Control(wanted) if wanted.try_send(topic.clone()).is_ok() => State::Asking,
            Authority::Control(_) => return false,
        };
        inner.version += 1;
        let version = inner.version;
        inner.topics.insert(topic.clone(), Entry { state, users: 1, version });
        true
    }

    /// A publisher that [joined](Self::join) is gone. A placement is kept: the control plane may be gone when the next
    /// publisher comes.
    pub(super) fn leave(&self, topic: &TopicName) {
        let mut inner = self.inner();
        let Some(entry) = inner.topics.get_mut(topic) else { return };
        entry.users = entry.users.saturating_sub(1);
        let is_asked_for = matches!(self.authority, Authority::Control(_));
        if entry.users == 0 && matches!(entry.state, State::Unplaced) && !is_asked_for {
            inner.topics.remove(topic);
        }
    }

    /// Where `identity` goes with `topic`; `None` as long as nobody has said.
    pub(super) fn look(&self, topic: &TopicName, identity: &str) -> Option<Look> {
        let found = self.inner().topics.get(topic).map(|entry| (entry.state.clone(), entry.version));
        match found {
            Some((State::Asking, _)) => None,
            Some((State::Placed(placed), version)) => Some(Look { version, candidates: placed.candidates(identity) }),
            Some((State::Unplaced, version)) => Some(Look { version, candidates: self.fallback.candidates(identity) }),
            None => Some(Look { version: 0, candidates: self.fallback.candidates(identity) }),
        }
    }

    /// The placement of `topic` is followed: it was not forgotten for another one.
    pub(super) fn follows(&self, topic: &TopicName) -> bool {
        self.inner().topics.contains_key(topic)
    }

    /// The number of the state of `topic`, which [`Look`] carries too.
    pub(super) fn version(&self, topic: &TopicName) -> u64 {
        self.inner().topics.get(topic).map_or(0, |entry| entry.version)
    }

    /// Puts a placement of the control plane in force. True if it is news. One of an older revision is not followed.
    pub(super) fn place(&self, topic: &TopicName, placement: Placement) -> Result<bool, BookError> {
        let of = placement.check()?;
        if of != *topic {
            return Err(BadPlacement::OtherTopic { topic: placement.topic }.into());
        }
        let mut inner = self.inner();
        let Some(entry) = inner.topics.get(topic) else { return Ok(false) };
        if let State::Placed(held) = &entry.state {
            let (held, found) = (&held.placement, placement.revision);
            if found < held.revision {
                return Err(BookError::Older { found, held: held.revision });
            }
            if *held == placement {
                return Ok(false);
            }
        }
        let placed = inner.place(placement)?;
        inner.change(topic, State::Placed(Arc::new(placed)));
        drop(inner);
        self.tell();
        Ok(true)
    }

    /// The control plane has no placement of `topic`. False if nobody publishes to it: then it is forgotten.
    pub(super) fn unplace(&self, topic: &TopicName) -> bool {
        let mut inner = self.inner();
        let Some(entry) = inner.topics.get(topic) else { return false };
        if entry.users == 0 {
            inner.topics.remove(topic);
            return false;
        }
        if !matches!(entry.state, State::Unplaced) {
            inner.change(topic, State::Unplaced);
            drop(inner);
            self.tell();
        }
        true
    }

    /// The control plane cannot be asked: what is in force stays, and a topic about which nothing is known goes to the
    /// nodes of the configuration. False if nobody publishes to that.
    pub(super) fn give_up(&self, topic: &TopicName) -> bool {
        let mut inner = self.inner();
        match inner.topics.get(topic) {
            None => return false,
            Some(Entry { state: State::Placed(_), .. }) => return true,
            Some(Entry { users: 0, .. }) => {
                inner.topics.remove(topic);
                return false;
            }
            Some(Entry { state: State::Unplaced, .. }) => return true,
            Some(Entry { state: State::Asking, .. }) => inner.change(topic, State::Unplaced),
        }
        drop(inner);
        self.tell();
        true
    }

    /// Puts all placements of a file in force, and no others.
    ///
    /// # Errors
    /// The first fault; then nothing changes.
    pub(super) fn replace(&self, placements: Vec<Placement>) -> Result<(), BookError> {
        let mut inner = self.inner();
        let mut placed = BTreeMap::new();
        for placement in placements {
            let topic = placement.check()?;
            placed.insert(topic, Arc::new(inner.place(placement)?));
        }
        let is_placed = |entry: &Entry| matches!(entry.state, State::Placed(_));
        let gone: Vec<TopicName> = inner
            .topics
            .iter()
            .filter(|(topic, entry)| is_placed(entry) && !placed.contains_key(*topic))
            .map(|(topic, _)| topic.clone())
            .collect();
        for topic in gone {
            inner.change(&topic, State::Unplaced);
        }
        for (topic, placed) in placed {
            let entry = inner.topics.entry(topic.clone());
            let entry = entry.or_insert(Entry { state: State::Unplaced, users: 0, version: 0 });
            let is_same = matches!(&entry.state, State::Placed(held) if held.placement == placed.placement);
            if !is_same {
                inner.change(&topic, State::Placed(placed));
            }
        }
        drop(inner);
        self.tell();
        Ok(())
    }

    /// The topics that are followed, in order.
    pub(super) fn rows(&self) -> Vec<TopicRow> {
        let inner = self.inner();
        let row = |(topic, entry): (&TopicName, &Entry)| {
            let (placed_by, placement) = match &entry.state {
                State::Asking => ("asking", None),
                State::Unplaced => ("nodes", Some(&self.fallback.placement)),
                State::Placed(placed) => ("placement", Some(&placed.placement)),
            };
            TopicRow {
                topic: topic.as_str().to_owned(),
                placed_by,
                revision: placement.map_or(0, |placement| placement.revision),
                nodes: placement.iter().flat_map(|it| it.nodes.iter().map(|node| node.name.clone())).collect(),
                publishers: entry.users,
            }
        };
        inner.topics.iter().map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> PlacedNode {
        PlacedNode { name: name.to_owned(), nsq: format!("{name}:4150") }
    }

    fn placement(revision: u64, nodes: &[&str]) -> Placement {
        Placement {
            topic: "t".to_owned(),
            revision,
            nodes: nodes.iter().map(|name| node(name)).collect(),
            publishers: BTreeMap::new(),
            default: Vec::new(),
        }
    }

    fn topic() -> TopicName {
        TopicName::new("t").unwrap()
    }

    fn names(book: &Book, look: &Look) -> Vec<String> {
        look.candidates.iter().map(|node| book.name(*node).unwrap().to_string()).collect()
    }

    #[test]
    fn a_topic_waits_for_its_first_answer_and_keeps_the_last_one() {
        let (wanted, mut asked) = mpsc::channel(4);
        let book = Book::new(&[node("a")], Authority::Control(wanted)).unwrap();
        let mut changes = book.changes();
        assert!(book.join(&topic()));
        assert_eq!(asked.try_recv(), Ok(topic()));
        assert_eq!(book.look(&topic(), "p"), None);
        assert_eq!(book.place(&topic(), placement(5, &["b"])), Ok(true));
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        let look = book.look(&topic(), "p").unwrap();
        assert_eq!((names(&book, &look), look.version), (vec!["b".to_owned()], book.version(&topic())));
        assert_eq!(book.place(&topic(), placement(5, &["b"])), Ok(false), "the same again");
        assert_eq!(book.place(&topic(), placement(4, &["a"])), Err(BookError::Older { found: 4, held: 5 }));
        // The control plane goes, and so do all publishers; the next one goes where the last one went.
        assert!(book.give_up(&topic()));
        book.leave(&topic());
        assert!(book.give_up(&topic()));
        assert!(book.join(&topic()));
        assert_eq!(book.look(&topic(), "p"), Some(look));
        assert!(!changes.has_changed().unwrap());
    }

    #[test]
    fn without_an_answer_a_topic_goes_to_the_nodes_of_the_configuration() {
        let (wanted, _asked) = mpsc::channel(4);
        let book = Book::new(&[node("a"), node("b")], Authority::Control(wanted)).unwrap();
        book.join(&topic());
        assert!(book.give_up(&topic()));
        let look = book.look(&topic(), "p").unwrap();
        assert_eq!(look.candidates, book.home("p"));
        assert_eq!(look.candidates.len(), 2, "each is there, in case the others are down");
        book.leave(&topic());
        assert!(!book.unplace(&topic()), "nobody publishes to it");
        assert!(book.rows().is_empty());
    }

    #[test]
    fn a_topic_beyond_the_bound_takes_the_place_of_one_without_a_placement() {
        let (wanted, _asked) = mpsc::channel(2 * TOPICS_MAX);
        let book = Book::new(&[node("a"), node("b")], Authority::Control(wanted)).unwrap();
        let numbered = |number: usize| TopicName::new(&format!("t{number}")).unwrap();
        for number in 0..TOPICS_MAX {
            assert!(book.join(&numbered(number)));
        }
        assert!(!book.join(&topic()), "nobody has said yet where those go");
        assert_eq!(book.look(&topic(), "p").unwrap().candidates, book.home("p"));
        book.unplace(&numbered(7));
        assert!(book.join(&topic()) && book.follows(&topic()) && !book.follows(&numbered(7)));
        assert!(book.place(&topic(), placement(1, &["b"])).unwrap());
        book.leave(&numbered(7));
        assert_eq!(book.look(&numbered(7), "p").unwrap().candidates, book.home("p"), "as before");
        // A placement is not forgotten for another topic.
        assert!(!book.join(&numbered(7)) && book.follows(&topic()));
    }

    #[test]
    fn a_file_is_followed_as_a_whole_or_not_at_all() {
        let book = Book::new(&[node("a")], Authority::File).unwrap();
        book.replace(vec![placement(0, &["b"])]).unwrap();
        book.join(&topic());
        assert_eq!(names(&book, &book.look(&topic(), "p").unwrap()), ["b"]);
        let mut other = placement(0, &["c"]);
        other.topic = "u".to_owned();
        let wrong = Placement { nodes: Vec::new(), ..placement(0, &[]) };
        assert!(book.replace(vec![other.clone(), wrong]).is_err());
        assert_eq!(names(&book, &book.look(&topic(), "p").unwrap()), ["b"]);
        book.replace(vec![other]).unwrap();
        assert_eq!(names(&book, &book.look(&topic(), "p").unwrap()), ["a"], "it is not in the file any more");
    }

    #[test]
    fn addresses_are_bounded() {
        let book = Book::new(&[node("a")], Authority::File).unwrap();
        let many: Vec<String> = (0..1_024).map(|number| format!("n{number}")).collect();
        for round in 0..4 {
            let nodes = many.iter().map(|name| node(&format!("{name}-{round}"))).collect();
            let done = book.replace(vec![Placement { nodes, ..placement(0, &["a"]) }]);
            assert_eq!(done, if round == 3 { Err(BookError::TooManyAddresses) } else { Ok(()) });
        }
    }
}
