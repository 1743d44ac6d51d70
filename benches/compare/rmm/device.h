// A device that RMM's pools use. `rmm.rs` has the same struct.
#pragma once
#include <cstddef>

struct Device {
    void* data;
    // Null where the device has no memory left.
    void* (*allocate)(void* data, std::size_t bytes);
    void (*deallocate)(void* data, void* block);
    void (*event_record)(void* data, void* event, void* stream);
    void (*stream_wait_event)(void* data, void* stream, void* event);
    void (*event_synchronize)(void* data, void* event);
    void (*stream_synchronize)(void* data, void* stream);
};

// Null: the runtime does nothing.
extern Device const* rmm_device;
