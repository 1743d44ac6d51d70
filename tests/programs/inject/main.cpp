// A program that contains the client. Its arguments are the client's.
extern "C" int client(char const* library, char const* what);

int main(int argc, char** argv) { return client(argc > 1 ? argv[1] : "", argc > 2 ? argv[2] : ""); }
