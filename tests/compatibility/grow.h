// A resizable block through random growth, moves, shrinks and refusals, byte for byte. Memory of the simulated device can be
// written to by the host.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "check.h"

template <class Allocator, class TakeBack>
void keeps_its_bytes(Allocator* a, std::uint32_t resizable, TakeBack take_back) {
    constexpr std::uint64_t mib = 1U << 20;
    std::uint64_t state = 88172645463325252U;
    auto below = [&state](std::uint64_t end) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        return state % end;
    };
    std::vector<unsigned char> model;
    // Writes what is added, a byte of its own to each MiB, so that no page can take another's place unnoticed.
    auto extend = [&](unsigned char* block, std::uint64_t size) {
        while (model.size() < size) {
            std::uint64_t const at = model.size();
            std::uint64_t const end = std::min(size, (at / mib + 1) * mib);
            auto const byte = static_cast<unsigned char>(below(256));
            std::memset(block + at, byte, end - at);
            model.resize(end, byte);
        }
    };
    std::uint64_t size = 3 * mib + 5;
    auto* block = static_cast<unsigned char*>(a->allocate(size, 512, resizable));
    CHECK(block != nullptr);
    extend(block, size);
    int moves = 0;
    int refusals = 0;
    for (int round = 0; round < 60; ++round) {
        for (int i = 0; i < 20; ++i) {
            std::uint64_t const at = below(size);
            std::uint64_t const end = at + 1 + below(std::min(mib, size - at));
            auto const byte = static_cast<unsigned char>(below(256));
            std::memset(block + at, byte, end - at);
            std::memset(model.data() + at, byte, end - at);
        }
        std::uint64_t const kinds[] = {size + 1 + below(4096), 1 + below(size), 1 + below(160 * mib), 2048 * mib};
        std::uint64_t const wanted = kinds[below(4)];
        auto* now = static_cast<unsigned char*>(a->reallocate(block, 512, wanted));
        if (now == nullptr) {
            CHECK(wanted == 2048 * mib);
            ++refusals;
        } else {
            moves += now != block ? 1 : 0;
            block = now;
            size = wanted;
            if (size < model.size()) {
                model.resize(size);
            }
            extend(block, size);
        }
        CHECK(std::memcmp(block, model.data(), size) == 0);
    }
    CHECK(moves > 0 && refusals > 0);
    take_back(a, block);
}
