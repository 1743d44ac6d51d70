// A C++ program: exceptions, streams, threads, locales and static objects, with a C++ runtime in its own folder.
#include <iostream>
#include <locale>
#include <regex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

struct AtEnd {
    ~AtEnd() { std::cout << "static object gone" << std::endl; }
} const at_end;

}  // namespace

int main() {
    std::vector<std::thread> threads;
    std::vector<int> caught(8);
    for (int& count : caught) {
        threads.emplace_back([&count] {
            for (int i = 0; i < 100; ++i) {
                try {
                    throw std::runtime_error(std::to_string(i));
                } catch (std::exception const& error) {
                    count += std::stoi(error.what());
                }
            }
        });
    }
    for (auto& thread : threads) {
        thread.join();
    }
    for (int const count : caught) {
        std::cout << count << ' ';
    }
    std::cout << std::regex_replace("a program", std::regex("[aeiou]"), "<$&>") << ' ' << std::locale().name() << std::endl;
    try {
        std::string().at(1);
    } catch (std::out_of_range const& error) {
        std::cerr << error.what() << '\n';
    }
    return 2;
}
