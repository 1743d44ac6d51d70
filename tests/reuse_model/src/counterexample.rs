//! The steps of a counterexample, in words.

use std::fmt;

use crate::application::Step;
use crate::reclaim::DeadEvents;

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::MakeStream(handle, context) => write!(f, "stream s{handle} is created in context c{context}"),
            Step::EndStream(handle) => write!(f, "stream s{handle} is destroyed"),
            Step::MakeContext(context) => write!(f, "context c{context} is created"),
            Step::EndContext(context) => write!(f, "context c{context} is destroyed"),
            Step::Launch(piece, handle) => write!(f, "work on block {piece} is queued on s{handle}"),
            Step::Order(first, second) => write!(f, "s{second} waits for the queued work of s{first}"),
            Step::Complete(work) => write!(f, "a piece of work completes (number {work})"),
            Step::BeginCapture(handle) => write!(f, "s{handle} begins a capture"),
            Step::EndCapture => write!(f, "the capture ends"),
            Step::LaunchGraph(handle) => write!(f, "the graph is launched on s{handle}"),
            Step::EndGraph => write!(f, "the graph is destroyed"),
            Step::Allocate(piece, handle) => write!(f, "the pool hands block {piece} out for s{handle}"),
            Step::AllocateAnywhere(piece, context) => {
                write!(f, "the pool hands block {piece} out without a stream, in c{context}")
            }
            Step::Miss(handle) => write!(f, "a request on s{handle} misses: its frees get a completion event"),
            Step::Wait(handle) => write!(f, "a request on s{handle} waits without the lock"),
            Step::Resume(piece) => write!(f, "the waiting request gets block {piece}"),
            Step::GiveUp => write!(f, "the waiting request gives up"),
            Step::Free(piece, handle, current) => {
                write!(f, "block {piece} is freed on s{handle}, while c{current} is current")
            }
            Step::FreeAnywhere(piece, current) => {
                write!(
                    f,
                    "block {piece} is freed without a stream, while c{current} is current"
                )
            }
            Step::Declare(piece, handle) => write!(f, "record_stream declares block {piece} for s{handle}"),
            Step::Release(handle) => write!(f, "s{handle} is released (trtalloc_stream_release)"),
            Step::Cover(false) => write!(f, "the pool covers the frees without a stream"),
            Step::Cover(true) => write!(f, "the pool covers all frees"),
            Step::Synchronise(context) => write!(f, "the pool begins to synchronize c{context}"),
            Step::Reclaim(DeadEvents::Pending) => write!(f, "the pool polls its events"),
            Step::Reclaim(DeadEvents::Over) => {
                write!(f, "the pool polls its events; those of destroyed contexts are complete")
            }
            Step::Reclaim(DeadEvents::Refused) => {
                write!(f, "the pool polls its events; those of destroyed contexts refuse")
            }
        }
    }
}
