// treap.cpp: inserts into and deletes from a treap whose nodes a template arena constructs by
// placement new in aligned blocks.
#include <cstdint>
#include <cstdio>
#include <new>
#include <string>
#include <utility>
#include <vector>

namespace {

std::uint64_t random_state = 10;

std::uint32_t draw()
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return static_cast<std::uint32_t>(random_state >> 16);
}

// Constructs objects in blocks that it frees at its end; reuses the memory of destroyed objects.
template <typename T, std::size_t SlotCount = 256>
class Arena {
public:
    Arena() = default;
    Arena(const Arena &) = delete;
    Arena &operator=(const Arena &) = delete;

    ~Arena()
    {
        for (Block *block : blocks)
            delete block;
    }

    template <typename... Arguments>
    T *make(Arguments &&...arguments)
    {
        if (!free_slots) {
            blocks.push_back(new Block);
            for (Slot &slot : blocks.back()->slots)
                free_slots = ::new (&slot) Slot{free_slots};
        }
        Slot *slot = std::exchange(free_slots, free_slots->next);
        return ::new (slot) T(std::forward<Arguments>(arguments)...);
    }

    void destroy(T *object)
    {
        object->~T();
        free_slots = ::new (static_cast<void *>(object)) Slot{free_slots};
    }

    std::size_t misaligned_count() const
    {
        std::size_t count = 0;
        for (const Block *block : blocks)
            count += reinterpret_cast<std::uintptr_t>(block) % alignof(Block) != 0;
        return count;
    }

    std::size_t block_count() const { return blocks.size(); }

private:
    union Slot {
        Slot *next;
        alignas(T) unsigned char bytes[sizeof(T)];
    };
    struct alignas(128) Block {
        Slot slots[SlotCount];
    };
    std::vector<Block *> blocks;
    Slot *free_slots = nullptr;
};

struct Node {
    Node(std::uint32_t new_key, std::string new_text) : key(new_key), text(std::move(new_text)) {}

    std::uint32_t key, priority = draw();
    Node *left = nullptr, *right = nullptr;
    std::string text;
};

class Treap {
public:
    void insert(std::uint32_t key)
    {
        auto [low, rest] = split(root, key);
        auto [same, high] = split(rest, key + 1);
        if (same)
            same->text += '+';
        else
            same = nodes.make(key, std::to_string(key) + std::string(50 + key % 100, '.'));
        root = join(join(low, same), high);
    }

    bool erase(std::uint32_t key)
    {
        auto [low, rest] = split(root, key);
        auto [same, high] = split(rest, key + 1);
        if (same)
            nodes.destroy(same);
        root = join(low, high);
        return same;
    }

    // Destroy all nodes in the order of their keys; return the height.
    template <typename Visit>
    std::size_t clear(Visit &&visit)
    {
        return clear(std::exchange(root, nullptr), visit);
    }

    Arena<Node> nodes;

private:
    // Split into the nodes below the key and the others.
    static std::pair<Node *, Node *> split(Node *node, std::uint32_t key)
    {
        if (!node)
            return {nullptr, nullptr};
        Node *&child = node->key < key ? node->right : node->left;
        auto [low, high] = split(child, key);
        child = node->key < key ? low : high;
        return node->key < key ? std::pair{node, high} : std::pair{low, node};
    }

    static Node *join(Node *low, Node *high)
    {
        if (!low || !high)
            return low ? low : high;
        Node *top = low->priority > high->priority ? low : high;
        (top == low ? low->right : high->left) =
            top == low ? join(low->right, high) : join(low, high->left);
        return top;
    }

    template <typename Visit>
    std::size_t clear(Node *node, Visit &visit)
    {
        if (!node)
            return 0;
        std::size_t left = clear(node->left, visit);
        visit(std::as_const(*node));
        std::size_t right = clear(node->right, visit);
        nodes.destroy(node);
        return 1 + (left > right ? left : right);
    }

    Node *root = nullptr;
};

} // namespace

int main()
{
    Treap treap;
    std::size_t erased = 0, count = 0, disorder = 0;
    for (int i = 0; i < 20000; i++) {
        treap.insert(draw() % 25000);
        erased += i % 4 == 3 && treap.erase(draw() % 25000);
    }
    unsigned long long sum = 0, last = 0;
    std::size_t height = treap.clear([&](const Node &node) {
        count++;
        disorder += node.key < last;
        last = node.key;
        for (char c : node.text)
            sum = sum * 31 + static_cast<unsigned char>(c);
    });
    std::printf("%zu nodes, %zu erased, disorder %zu\n", count, erased, disorder);
    std::printf("height %zu, %zu blocks, %zu misaligned, sum %016llx\n", height,
                treap.nodes.block_count(), treap.nodes.misaligned_count(), sum);
}
