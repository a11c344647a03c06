// containers.cpp: fills the standard containers and changes them by algorithms: sort, stable_sort,
// partition, rotate, unique, priority_queue, lower_bound.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <functional>
#include <iterator>
#include <list>
#include <map>
#include <numeric>
#include <queue>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

class Random {
public:
    explicit Random(std::uint64_t seed) : state(seed) {}

    std::uint32_t operator()(std::uint32_t limit)
    {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        return static_cast<std::uint32_t>(state >> 16) % limit;
    }

private:
    std::uint64_t state;
};

template <typename Range>
unsigned long long checksum(const Range &range)
{
    return std::accumulate(std::begin(range), std::end(range), 0ull,
                           [](unsigned long long sum, auto value) { return sum * 31 + value; });
}

void vectors()
{
    Random random(11);
    std::vector<std::uint32_t> numbers;
    for (int i = 0; i < 300000; i++)
        numbers.push_back(random(100000));
    auto middle = std::partition(numbers.begin(), numbers.end(), [](auto n) { return n % 3 == 0; });
    std::sort(numbers.begin(), middle);
    std::stable_sort(middle, numbers.end(), [](auto a, auto b) { return a % 1000 > b % 1000; });
    std::rotate(numbers.begin(), middle, numbers.end());
    std::nth_element(numbers.begin(), numbers.begin() + 5000, numbers.begin() + 10000);
    std::printf("vector: median %u, sum %016llx\n", numbers[5000],
                checksum(std::vector(numbers.begin() + 10000, numbers.end())));
    std::sort(numbers.begin(), numbers.end(), std::greater<>());
    numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
    numbers.shrink_to_fit();
    auto place = std::lower_bound(numbers.begin(), numbers.end(), 777u, std::greater<>());
    std::printf("distinct: %zu, at most 777: %td, sum %016llx\n", numbers.size(),
                numbers.end() - place, checksum(numbers));
}

void maps()
{
    Random random(12);
    std::map<std::uint32_t, std::string> texts;
    std::unordered_map<std::string, std::vector<std::uint32_t>> groups;
    for (std::uint32_t i = 0; i < 12000; i++) {
        std::uint32_t key = random(20000);
        auto [entry, is_new] = texts.try_emplace(key, "text " + std::to_string(key * 7));
        if (!is_new)
            entry->second.append(", again at ").append(std::to_string(i));
        groups["a group with the number " + std::to_string(key % 3000)].push_back(i);
        if (i % 5 == 0)
            texts.erase(texts.lower_bound(random(10000)));
    }
    unsigned long long sum = 0, grouped = 0;
    for (const auto &[key, text] : texts)
        sum = sum * 31 + key + checksum(text);
    for (auto &[name, members] : groups) // the order of groups does not matter
        grouped += checksum(name) ^ checksum(members);
    auto moved = std::move(groups);
    groups.clear();
    std::printf("maps: %zu texts, sum %016llx, %zu groups, sum %016llx\n", texts.size(), sum,
                moved.size(), grouped);
}

void sequences()
{
    Random random(13);
    std::deque<std::uint64_t> both_ends;
    std::list<std::string> names;
    for (std::uint32_t i = 0; i < 30000; i++) {
        if (random(2))
            both_ends.push_front(i);
        else
            both_ends.push_back(i * 3ull);
        if (i % 7 == 0)
            both_ends.pop_back();
        if (i % 10 == 0)
            names.push_back("name " + std::string(random(60), static_cast<char>('a' + i % 26)));
    }
    std::list<std::string> others;
    others.splice(others.end(), names, names.begin(), std::next(names.begin(), 1000));
    names.sort();
    others.sort();
    names.merge(others);
    names.remove_if([](const std::string &name) { return name.size() % 4 == 0; });
    names.reverse();
    unsigned long long sum = 0;
    for (const std::string &name : names)
        sum = sum * 31 + checksum(name);
    std::printf("deque: %zu, sum %016llx; list: %zu, sum %016llx\n", both_ends.size(),
                checksum(both_ends), names.size(), sum);
}

// Find the shortest paths of a random graph.
void paths()
{
    constexpr std::uint32_t count = 10000;
    Random random(14);
    struct Edge {
        std::uint32_t to, length;
    };
    std::vector<std::vector<Edge>> edges(count);
    for (std::uint32_t from = 0; from < count; from++)
        for (int i = 0; i < 4; i++)
            edges[from].push_back({(from + (i ? random(200) : 1)) % count, 1 + random(50)});
    std::vector<std::uint64_t> distances(count, UINT64_MAX);
    using Step = std::pair<std::uint64_t, std::uint32_t>;
    std::priority_queue<Step, std::vector<Step>, std::greater<>> queue;
    std::set<std::uint32_t> far;
    queue.emplace(distances[0] = 0, 0);
    while (!queue.empty()) {
        auto [distance, from] = queue.top();
        queue.pop();
        if (distance == distances[from] && distance > 300)
            far.insert(from);
        for (const Edge &edge : edges[from])
            if (distance == distances[from] && distance + edge.length < distances[edge.to])
                queue.emplace(distances[edge.to] = distance + edge.length, edge.to);
    }
    std::uint64_t longest = *std::max_element(distances.begin(), distances.end());
    std::printf("paths: sum %016llx, longest %s, %zu far\n", checksum(distances),
                std::to_string(longest).c_str(), far.size());
}

} // namespace

int main()
{
    vectors();
    maps();
    sequences();
    paths();
}
