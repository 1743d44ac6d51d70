//! Per-free events: streams without ids, whose handle may have been another stream's (drivers before CUDA 12.0).

use super::*;

impl Allocator {
    /// Allocates for a stream without an id. Such a stream has no cache. It gets what others freed behind an event, and
    /// what it captures belongs to the graph.
    #[cold]
    pub(super) fn allocate_with_per_free_events(&self, want: Want, request: &Request, stream: Stream) -> Result<u64> {
        self.check_stream_is_known(Some(stream))?;
        let Some(key) = self.key(stream)? else {
            return self.allocate_in_primary(want, request);
        };
        let view = StreamView {
            key,
            stream,
            id: 0,
            capture: self.driver.look_for_capture(stream)?,
            device: None,
        };
        if matches!(view.capture, Capture::Active | Capture::Invalidated) {
            return self.miss(want, request, &view);
        }
        let device = self.stream_device(stream)?;
        let wanted = self.device_for(request.device, device);
        let pool = self.pool(wanted)?;
        pool.note_stream_context(stream)?;
        let kind = pool.dedicated_kind(request.flags & RESIZABLE != 0).is_some();
        if kind || view.capture != Capture::None || wanted != device {
            let device = Some(wanted);
            return self.allocate_for_any_stream(want, &Request { device, ..*request });
        }
        let address = pool.allocate(want, Some(&view))?;
        self.note_resizable(pool, address, want, request);
        self.filled(pool, address, want, request, Some(stream))
    }

    /// The stream and the key of a free that has an event of its own. `None` where streams have ids, or for a free
    /// without a stream.
    pub(super) fn per_free_key(&self, stream: Option<Stream>) -> Option<(Stream, Key)> {
        let stream = stream.filter(|_| !self.streams)?;
        Some((stream, self.key(stream).ok()??))
    }
}
