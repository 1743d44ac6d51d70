//! The device by CUDA's rules. Work is never ordered but by streams, events and contexts, and ends when it likes.

use crate::state::*;

impl State {
    /// The points that new work on the stream is ordered behind, and that its context's work is too.
    fn points_of(&self, handle: u8) -> Points {
        stream_point(handle) | context_point(self.streams[handle as usize].context)
    }

    /// Whether the handle names a stream.
    pub fn is_live(&self, handle: u8) -> bool {
        self.streams[handle as usize].life == Life::Live
    }

    /// Whether the stream captures.
    pub fn captures(&self, handle: u8) -> bool {
        self.graph.stage == Stage::Capturing && self.graph.handle == handle
    }

    /// Whether something is queued that the point is ordered behind.
    pub fn is_pending(&self, point: Points) -> bool {
        self.work.iter().any(|work| work.before & point != 0)
    }

    /// Queues work on a stream that uses the piece.
    pub fn launch(&mut self, piece: u8, handle: u8, declared: bool, graph: bool) {
        self.work.push(Work {
            piece,
            context: self.streams[handle as usize].context,
            former: false,
            declared,
            graph,
            before: self.points_of(handle),
        });
    }

    /// What comes next on the stream waits for whatever the point is ordered behind.
    pub fn wait(&mut self, handle: u8, point: Points) {
        let points = self.points_of(handle);
        let behind = self.work.iter_mut().filter(|work| work.before & point != 0);
        behind.for_each(|work| work.before |= points);
    }

    /// Records an event behind whatever the point is ordered behind.
    pub fn record(&mut self, event: u8, point: Points) {
        for work in &mut self.work {
            work.before &= !event_point(event);
            if work.before & point != 0 {
                work.before |= event_point(event);
            }
        }
    }

    /// Another stream has the handle from now on, with an id that none ever had.
    pub fn make_stream(&mut self, handle: u8, context: u8) {
        let id = self.next_id(handle);
        self.forget_points(stream_point(handle));
        let life = Life::Live;
        self.streams[handle as usize] = Stream { life, id, context };
        self.undeclare(handle);
    }

    /// The stream is gone. What it had queued goes on, and is still said to be behind its handle, for the application may
    /// free by it what it allocated there.
    pub fn end_stream(&mut self, handle: u8) {
        self.streams[handle as usize].life = Life::Gone;
        self.undeclare(handle);
    }

    /// What is launched on the handle from now on was not declared.
    fn undeclare(&mut self, handle: u8) {
        for place in &mut self.pieces {
            if let Place::Live(block) = place {
                block.declared &= !(1 << handle);
            }
        }
    }

    /// The context is gone with its streams, its events and its work.
    pub fn end_context(&mut self, context: u8) {
        let at = context as usize;
        self.contexts[at] = Life::Gone;
        self.used[at] = false;
        self.work.retain(|work| work.context != context);
        self.forget_points(context_point(context));
        for handle in 0..HANDLES as u8 {
            if self.is_live(handle) && self.streams[handle as usize].context == context {
                self.end_stream(handle);
            }
        }
        for event in 0..EVENTS {
            if self.events[event] == Event::Of(context) {
                self.events[event] = Event::Dead;
                self.forget_points(event_point(event as u8));
            }
        }
        let left = std::mem::take(&mut self.crossed[at]).then_some(CROSSED);
        for piece in &mut self.pieces {
            if let Place::Live(block) = piece
                && block.context == Some(context)
            {
                block.context = left;
            }
        }
        if self.known[at] == Known::Present {
            self.known[at] = Known::Former;
        }
    }

    /// Nothing is said to be ordered behind anything at these points any more.
    pub fn forget_points(&mut self, points: Points) {
        self.work.iter_mut().for_each(|work| work.before &= !points);
    }

    /// Makes an event in a context. The driver gives handles out again: the first that may be had.
    pub fn make_event(&mut self, context: u8, dead: bool) -> Option<u8> {
        let wanted = if dead { Event::Dead } else { Event::None };
        let event = self.events.iter().position(|event| *event == wanted)?;
        self.events[event] = Event::Of(context);
        Some(event as u8)
    }

    /// Whether work that a former owner of the piece had launched need not be over when new work on the stream begins; with
    /// no stream, whether it need not be over now.
    pub fn is_in_use(&self, piece: u8, handle: Option<u8>) -> bool {
        let behind = handle.map_or(0, stream_point);
        let mut using = self.work.iter().filter(|work| work.piece == piece);
        using.any(|work| work.before & behind == 0)
    }
}
