// A program may define names that the run-time also has, and replace operators and functions.
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

static int news, texts;

int fail(int number) { return number + 1; }
extern "C" int pager_read(int number) { return number + 2; }
extern "C" int store_kv(int number) { return number + 3; }

void *operator new(std::size_t size) {
    news++;
    return std::malloc(size);
}

void operator delete(void *block) noexcept { std::free(block); }
void operator delete(void *block, std::size_t) noexcept { std::free(block); }

extern "C" int puts(const char *text) {
    texts++;
    return std::fputs(text, stdout);
}

int main() {
    std::vector<std::string> words;
    for (int i = 0; i < 20000; i++)
        words.push_back(std::string(40, static_cast<char>('a' + i % 26)));
    puts(words[25].c_str());
    puts("\n");
    std::printf("%d %d %d %d %d\n", fail(1), pager_read(1), store_kv(1), news >= 20000, texts);
}
