//! The device, by CUDA's rules. Only streams, events and contexts order work, and work may complete at any time.

use crate::state::*;

impl State {
    /// The points that new work on the stream precedes: the stream's and its context's.
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

    /// Whether queued work precedes the point.
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

    /// The next work on the stream waits for all work that precedes the point.
    pub fn wait(&mut self, handle: u8, point: Points) {
        let points = self.points_of(handle);
        let behind = self.work.iter_mut().filter(|work| work.before & point != 0);
        behind.for_each(|work| work.before |= points);
    }

    /// Records an event after all work that precedes the point.
    pub fn record(&mut self, event: u8, point: Points) {
        for work in &mut self.work {
            work.before &= !event_point(event);
            if work.before & point != 0 {
                work.before |= event_point(event);
            }
        }
    }

    /// Gives the handle to a new stream, with a new id.
    pub fn make_stream(&mut self, handle: u8, context: u8) {
        let id = self.next_id(handle);
        self.forget_points(stream_point(handle));
        let life = Life::Live;
        self.streams[handle as usize] = Stream { life, id, context };
        self.undeclare(handle);
    }

    /// Destroys the stream. Its queued work continues and still precedes the handle's point, because the application
    /// may free memory that was allocated there by that handle.
    pub fn end_stream(&mut self, handle: u8) {
        self.streams[handle as usize].life = Life::Gone;
        self.undeclare(handle);
    }

    /// From now on launches on the handle are not declared.
    fn undeclare(&mut self, handle: u8) {
        for place in &mut self.sets.pieces {
            if let Place::Live(block) = place {
                block.declared &= !(1 << handle);
            }
        }
    }

    /// Destroys the context with its streams, its events and its work.
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
        for piece in &mut self.sets.pieces {
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

    /// From now on no work precedes these points.
    pub fn forget_points(&mut self, points: Points) {
        self.work.iter_mut().for_each(|work| work.before &= !points);
    }

    /// Creates an event in a context. The driver reuses handles: it returns the first available one.
    pub fn make_event(&mut self, context: u8, dead: bool) -> Option<u8> {
        let wanted = if dead { Event::Dead } else { Event::None };
        let event = self.events.iter().position(|event| *event == wanted)?;
        self.events[event] = Event::Of(context);
        Some(event as u8)
    }

    /// Whether work of a former owner of the piece may be pending when new work on the stream begins; without a stream,
    /// whether it may be pending now.
    pub fn is_in_use(&self, piece: u8, handle: Option<u8>) -> bool {
        let behind = handle.map_or(0, stream_point);
        let mut using = self.work.iter().filter(|work| work.piece == piece);
        using.any(|work| work.before & behind == 0)
    }
}
