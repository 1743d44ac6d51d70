// Memory for an adapter, which is never freed, and its reference to the Rust side. Only adapters' files include it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

#include "adapter.h"

namespace trtalloc {

inline std::size_t number(void const* pointer) noexcept { return reinterpret_cast<std::size_t>(pointer); }

inline void* pointer(std::size_t number) noexcept { return reinterpret_cast<void*>(number); }

// An adapter belongs to its allocator. If an application deletes it all the same, the adapter's operator delete calls
// `revive`, which constructs it again, so that later calls through the pointer find a live object. The slot also
// refers to the object that the adapter forwards to, because `revive` needs it after the adapter's destructor.
template <class Adapter, class Target>
struct Slot {
    Target const* target;
    alignas(Adapter) unsigned char object[sizeof(Adapter)];

    static Adapter* make(Target const& target) noexcept {
        // `new` would need the C++ runtime's exceptions, and their memory, which is set aside when the library is loaded.
        void* memory = std::malloc(sizeof(Slot));
        if (memory == nullptr) return nullptr;
        auto* slot = ::new (memory) Slot{&target, {}};
        return ::new (static_cast<void*>(slot->object)) Adapter(target);
    }

    static void revive(void* object) noexcept {
        auto* slot = reinterpret_cast<Slot*>(static_cast<unsigned char*>(object) - offsetof(Slot, object));
        ::new (object) Adapter(*slot->target);
    }
};

}  // namespace trtalloc
