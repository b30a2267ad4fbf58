//! The one list of frame kinds.
//!
//! A number once given is never given to another kind. Each family has sixteen numbers of its
//! own, so that it can grow; those of jobs carry JSON, and nothing here decodes them.
//! 240 to 255 are for private trials and will never have a meaning.

/// Which side may send a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// Only clients.
    Client,
    /// Only servers.
    Server,
    /// Clients and servers.
    Both,
}

impl Side {
    /// Whether a client may send it.
    pub fn is_clients(self) -> bool {
        self != Self::Server
    }

    /// Whether a server may send it.
    pub fn is_servers(self) -> bool {
        self != Self::Client
    }

    /// The word in the documentation.
    pub fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Server => "server",
            Self::Both => "both",
        }
    }
}

/// A list of kinds by their numbers.
macro_rules! numbered {
    ($(#[$attribute:meta])* $list:ident $($number:literal $name:ident $doc:literal,)+) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum $list {
            $(#[doc = $doc] $name = $number,)+
        }

        impl $list {
            /// Every kind, in the order of the numbers.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// The kind of this number, if there is one.
            pub fn from_number(number: u8) -> Option<Self> {
                match number { $($number => Some(Self::$name),)+ _ => None }
            }

            /// The number on the wire; never reused.
            pub fn number(self) -> u8 {
                self as u8
            }

            /// Its name; never reused.
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name)),+ }
            }
        }
    };
}

macro_rules! kinds {
    ($($number:literal $name:ident $side:ident $doc:literal,)+) => {
        numbered! {
            /// What a frame is about.
            #[non_exhaustive]
            Kind $($number $name $doc,)+
        }

        impl Kind {
            /// Which side sends it.
            pub fn side(self) -> Side {
                match self { $(Self::$name => Side::$side),+ }
            }
        }
    };
}

// Append only, within the family's sixteen numbers.
kinds! {
    1 Hello Client "The first frame of a connection: the client, and what it understands.",
    2 Welcome Server "The answer to a hello: what holds on this connection.",
    3 Error Server "Something asked for was refused or failed.",
    4 Ping Both "Are you alive?",
    5 Pong Both "The answer to a ping.",
    6 Drain Server "Finish what is under way and come back later, or elsewhere.",
    7 Bye Both "The last frame of a connection that ends well.",

    16 TopicCreate Client "Creates a topic.",
    17 TopicConfigure Client "Gives a topic other settings.",
    18 TopicDescribe Client "Asks what a topic is and holds.",
    19 TopicList Client "Asks for the topics that match a pattern.",
    20 TopicDelete Client "Removes a topic with all its messages.",
    21 TopicPurge Client "Removes the older messages of a topic.",
    22 TopicInfo Server "What a topic is and holds.",
    23 TopicInfos Server "What several topics are and hold.",
    24 Done Server "What was asked for is done.",

    32 Publish Client "Messages for one topic.",
    33 PublishAck Server "What became of a publish or a commit.",
    34 Commit Client "Messages for several topics, and cells: all or nothing.",
    35 CancelDelayed Client "Takes a delayed message back.",
    36 Cancelled Server "Whether a delayed message could be taken back.",
    37 DeliveryReport Server "Who took a publish, after its ack.",

    48 Subscribe Client "Follows a topic or a pattern (recovery request).",
    49 Subscribed Server "A subscription is accepted.",
    50 Unsubscribe Client "Ends a subscription.",
    51 Unsubscribed Server "A subscription is ended; nothing of it comes any more.",
    52 Messages Server "Messages of one topic, history or live.",
    53 RecoveryResponse Server "History from here to there comes next.",
    54 RecoveryComplete Server "History is done; what comes now is live.",
    55 Gap Server "Numbers that will not come, and why.",
    56 Credit Client "Allows more to be sent to a subscription.",
    57 Ended Server "The server ended a subscription.",
    58 AwaitVisible Client "Waits until all nodes of the cluster know what is followed here.",
    59 Visible Server "Which nodes do not know it yet.",

    60 ClientClose Client "Ends the connection of a client.",

    64 Get Client "Asks for the newest message of a key.",
    65 Read Client "Asks for the message of a seq.",
    66 Found Server "A message.",
    67 NotFound Server "There is no such message, or no more.",
    68 CellRead Client "Asks for the value of a cell.",
    69 CellValue Server "The value of a cell.",
    70 Clients Client "Asks who is connected.",
    71 ClientList Server "Who is connected.",
    72 Stats Client "Asks for numbers about the server.",
    73 StatsText Server "Numbers about the server, as JSON.",
    74 Auth Client "Asks about identities, roles and tokens, or changes them, as JSON.",
    75 AuthAnswer Server "What became of that, as JSON.",
    76 Cluster Client "Asks how the cluster stands, or that the node leaves it, as JSON.",
    77 ClusterAnswer Server "How the cluster stands, as JSON.",
    78 Explain Client "Asks where a message is, and how far groups are with it.",
    79 Explained Server "Where a message is, as JSON.",

    80 GroupJoin Client "Becomes a member of a group.",
    81 GroupJoined Server "A membership is accepted.",
    82 GroupLeave Client "Ends a membership.",
    83 GroupLeft Server "A membership is ended; nothing of it comes any more.",
    84 GroupMessages Server "Leased messages of one topic.",
    85 GroupAck Client "Leased messages are done.",
    86 GroupNack Client "Leased messages are to come again.",
    87 GroupExtend Client "Leases are to last longer.",
    88 GroupTerminate Client "Leased messages are to go to the dead letters.",
    89 GroupStep Client "Acks, messages for several topics, and cells: all or nothing.",
    90 GroupDone Server "What became of an ack, nack, extend or terminate.",
    91 GroupCredit Client "How many messages may be in flight with a member.",
    92 GroupRole Server "Whether a member of an ordered group gets the messages, or stands by.",
    93 GroupGap Server "Messages of a group's source that are gone, and why.",

    96 JobClientHello Client "A client of jobs, with its cap.",
    97 JobWorkerHello Client "A worker, with its pattern.",
    98 JobSubmit Client "A job to be done.",
    99 JobAssign Server "A job for a worker.",
    100 JobAck Both "What became of an attempt, with its result.",
    101 JobResult Server "The result of a job for its client.",
    102 JobCancel Both "A job is not wanted any more.",
    103 JobProgress Both "How far a job is.",
    104 JobCredit Client "How many more jobs a worker takes.",
    105 JobWelcome Server "The answer to the hello of a client of jobs or a worker.",
    106 JobAnswer Server "Whether what was asked about a job is done, or why not.",
    107 JobRenew Client "The attempts that a worker is still at.",
    108 JobWatch Client "The result of a job is wanted.",
    109 JobRetry Client "A job that ended without success is to be tried again.",
    110 JobQuery Client "How jobs stand, or that an ended one be forgotten.",
    111 JobReply Server "How jobs stand.",

    112 GroupCreate Client "Creates a group.",
    113 GroupConfigure Client "Gives a group other settings.",
    114 GroupDescribe Client "Asks what a group is and how it stands.",
    115 GroupList Client "Asks for the groups that match a pattern.",
    116 GroupDelete Client "Removes a group with its dead letters.",
    117 GroupPause Client "Lets a group hand out nothing more.",
    118 GroupResume Client "Lets a group go on, after a pause or over a gap.",
    119 GroupReset Client "Lets a group start again somewhere else.",
    120 GroupInfo Server "What a group is and how it stands.",
    121 GroupInfos Server "What several groups are and how they stand.",
    122 LetterList Client "Asks for dead letters of a group.",
    123 LetterRead Client "Asks for one dead letter.",
    124 LetterRedrive Client "Puts dead letters back into their topics.",
    125 LetterRemove Client "Removes dead letters.",
    126 Letters Server "Dead letters.",
    127 LettersMoved Server "How many dead letters were redriven or removed.",
}

impl Kind {
    /// Whether it belongs to jobs, which speak JSON on connections of their own: no verb decodes
    /// it.
    pub fn is_of_jobs(self) -> bool {
        (Self::JobClientHello..=Self::JobReply).contains(&self)
    }
}
