// lz_codec.cpp: compresses text by matches of earlier text, which it finds by hash chains in
// aligned tables, and decompresses the result by copies that overlap.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

namespace {

using Bytes = std::vector<std::uint8_t>;

unsigned long long checksum(const Bytes &bytes)
{
    unsigned long long sum = 14695981039346656037u;
    for (std::uint8_t byte : bytes)
        sum = (sum ^ byte) * 1099511628211u;
    return sum;
}

template <unsigned Bits>
struct alignas(64) Table {
    static constexpr std::uint32_t mask = (1u << Bits) - 1;
    std::uint32_t &operator[](std::uint32_t index) { return entries[index & mask]; }
    std::uint32_t entries[mask + 1] = {};
};

template <unsigned WindowBits>
class Compressor {
public:
    explicit Compressor(const Bytes &new_input) : input(new_input) {}

    Bytes run()
    {
        std::size_t at = 0, literals = 0;
        while (at < input.size()) {
            auto [length, distance] = find(at);
            if (length < match_min) {
                add(at++);
                literals++;
                continue;
            }
            put_literals(at, std::exchange(literals, 0));
            put_number(length);
            put_number(distance);
            for (std::size_t end = at + length; at < end; at++)
                add(at);
        }
        put_literals(at, literals);
        put_number(0);
        return std::move(output);
    }

private:
    static constexpr std::size_t match_min = 6, match_max = 1000, tries_max = 12;

    std::uint32_t hash(std::size_t at) const
    {
        std::uint32_t word;
        std::memcpy(&word, &input[at], sizeof word);
        return word * 2654435761u >> 14;
    }

    // Remember a place under the hash of its four bytes; entries are places plus one.
    void add(std::size_t at)
    {
        auto place = static_cast<std::uint32_t>(at);
        if (at + 4 <= input.size())
            (*previous)[place] = std::exchange((*newest)[hash(at)], place + 1);
    }

    std::pair<std::size_t, std::size_t> find(std::size_t at)
    {
        std::pair<std::size_t, std::size_t> best{0, 0};
        std::size_t limit = std::min(input.size() - at, match_max), tries = 0;
        std::uint32_t next = limit < match_min ? 0 : (*newest)[hash(at)];
        for (; next && at - next < Table<WindowBits>::mask && tries < tries_max; tries++) {
            std::size_t place = next - 1;
            const std::uint8_t *here = &input[at];
            auto end = std::mismatch(here, here + limit, &input[place]);
            auto length = static_cast<std::size_t>(end.first - here);
            if (length > best.first)
                best = {length, at - place};
            next = (*previous)[next - 1];
        }
        return best;
    }

    void put_number(std::size_t number)
    {
        for (; number >= 128; number >>= 7)
            output.push_back(static_cast<std::uint8_t>(number | 128));
        output.push_back(static_cast<std::uint8_t>(number));
    }

    void put_literals(std::size_t end, std::size_t count)
    {
        put_number(count);
        output.insert(output.end(), input.data() + end - count, input.data() + end);
    }

    const Bytes &input;
    Bytes output;
    std::unique_ptr<Table<18>> newest = std::make_unique<Table<18>>();
    std::unique_ptr<Table<WindowBits>> previous = std::make_unique<Table<WindowBits>>();
};

std::size_t get_number(const Bytes &input, std::size_t &at)
{
    std::size_t number = 0;
    for (unsigned shift = 0;; shift += 7) {
        std::uint8_t byte = input.at(at++);
        number |= static_cast<std::size_t>(byte & 127) << shift;
        if (byte < 128)
            return number;
    }
}

Bytes decompress(const Bytes &input)
{
    Bytes output;
    for (std::size_t at = 0;;) {
        std::size_t literals = get_number(input, at);
        if (literals > input.size() - at)
            throw std::runtime_error("literals end after the input");
        output.insert(output.end(), input.data() + at, input.data() + at + literals);
        at += literals;
        std::size_t length = get_number(input, at);
        if (!length)
            return output;
        std::size_t distance = get_number(input, at);
        for (std::size_t place = output.size() - distance; length--; place++)
            output.push_back(output.at(place));
    }
}

Bytes make_text(std::size_t size_bytes)
{
    constexpr std::string_view words[] = {
        "the ", "page ",  "store ", "of ",      "remote ", "memory ",
        "is ",  "fast, ", "when ",  "threads ", "wait.\n", "01234 ",
    };
    Bytes text;
    std::uint64_t state = 18;
    while (text.size() < size_bytes) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        std::string_view word = words[(state >> 33) % 12];
        text.insert(text.end(), word.begin(), word.end());
        if (state >> 60 == 0)
            text.push_back(static_cast<std::uint8_t>(state >> 40));
        if (state >> 54 == 1)
            text.resize(text.size() + (state >> 45) % 500, 'z');
    }
    return text;
}

} // namespace

int main()
{
    Bytes text = make_text(900000);
    Bytes packed = Compressor<16>(text).run();
    Bytes unpacked = decompress(packed);
    std::printf("text %zu, packed %zu, same %d, sums %016llx %016llx\n", text.size(), packed.size(),
                text == unpacked, checksum(text), checksum(packed));
    try {
        packed.resize(packed.size() / 2);
        decompress(packed);
    } catch (const std::exception &) {
        std::puts("half of the packed text is rejected");
    }
}
